#include "model/shard.h"

#include <string>

#include "core/error.h"

namespace outrider {

Range split_range(int64_t total, int rank, int size) {
  CHECK(total >= 0 && 0 <= rank && rank < size);
  return {total * rank / size, total * (rank + 1) / size};
}

Range split_ffn(int64_t columns, int rank, int size) {
  const int64_t unit = columns % 8 == 0 && columns / 8 >= size ? 8 : 1;
  const Range units = split_range(columns / unit, rank, size);
  return {units.begin * unit, units.end * unit};
}

Shard Shard::of(const ModelConfig& config, int rank, int size) {
  CHECK(0 <= rank && rank < size);
  const auto require = [size](int64_t parts, const char* what) {
    if (parts < size) {
      throw Error("the model cannot be cut into " + std::to_string(size) + " ranks: it has " +
                  std::to_string(parts) + " " + what + "; expected at least one for each rank");
    }
  };
  require(config.num_heads, "query heads (num_attention_heads)");
  require(config.intermediate_size, "FFN columns (intermediate_size)");
  require(config.vocab_size, "tokens (vocab_size)");
  const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
  if (scored > 0) require(1, "trimmed head (draft_token_ids)");

  Shard shard;
  shard.rank = rank;
  shard.size = size;
  shard.heads = split_range(config.num_heads, rank, size);
  const int64_t group_size = config.num_heads / config.num_kv_heads;
  shard.kv_heads = {shard.heads.begin / group_size,
                    (shard.heads.end + group_size - 1) / group_size};
  shard.intermediate = split_ffn(config.intermediate_size, rank, size);
  shard.vocab = split_range(config.vocab_size, rank, size);
  shard.head = scored > 0 ? Range{0, scored} : shard.vocab;
  shard.attention.num_heads = shard.heads.size();
  shard.attention.num_kv_heads = shard.kv_heads.size();
  shard.attention.head_dim = config.head_dim;
  shard.attention.group_size = group_size;
  shard.attention.head_offset = shard.heads.begin - shard.kv_heads.begin * group_size;
  return shard;
}

}  // namespace outrider
