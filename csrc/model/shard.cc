#include "model/shard.h"

#include <string>
#include <vector>

#include "core/error.h"

namespace outrider {

Range split_range(int64_t total, int rank, int size) {
  CHECK(total >= 0 && 0 <= rank && rank < size);
  return {total * rank / size, total * (rank + 1) / size};
}

static int64_t ffn_unit(int64_t columns, int size) {
  return columns % 8 == 0 && columns / 8 >= size ? 8 : 1;
}

Range split_ffn(int64_t columns, int rank, int size) {
  const int64_t unit = ffn_unit(columns, size);
  const Range units = split_range(columns / unit, rank, size);
  return {units.begin * unit, units.end * unit};
}

namespace {

struct Heads {
  Range query, kv;
};

Heads split_heads(const ModelConfig& config, int rank, int size) {
  const Range query = split_range(config.num_heads, rank, size);
  const int64_t group_size = config.num_heads / config.num_kv_heads;
  return {query, {query.begin / group_size, (query.end + group_size - 1) / group_size}};
}

// As split_ffn, but so that ranks have as many weights of a layer as may be, those of their heads
// among them.
Range split_ffn_beside_heads(const ModelConfig& config, int rank, int size) {
  const int64_t columns = config.intermediate_size, unit = ffn_unit(columns, size);
  std::vector<int64_t> before = {0};  // [rank]: weights of the heads of all ranks before it
  for (int r = 0; r < size; ++r) {
    const Heads heads = split_heads(config, r, size);
    before.push_back(before.back() + 2 * config.hidden_size * config.head_dim *
                                         (heads.query.size() + heads.kv.size()));
  }
  const int64_t column = config.hidden_size * (config.num_ffn_in() + 1);  // its weights
  const int64_t weights = columns * column + before.back();
  // The ranks before r have their shares: what is not heads is columns, to the nearest unit.
  const auto begin_of = [&](int r) {
    const int64_t share = weights * r - size * before[r], of_unit = size * column * unit;
    return (2 * share + of_unit) / (2 * of_unit) * unit;
  };
  bool alike = true, all_have_some = true;
  for (int r = 0; r < size; ++r) {
    alike = alike && before[r + 1] == (r + 1) * before[1];
    all_have_some = all_have_some && begin_of(r) < begin_of(r + 1);
  }
  if (alike || !all_have_some) return split_ffn(columns, rank, size);
  return {begin_of(rank), begin_of(rank + 1)};
}

}  // namespace

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
  const Heads heads = split_heads(config, rank, size);
  shard.heads = heads.query;
  shard.kv_heads = heads.kv;
  shard.intermediate = split_ffn_beside_heads(config, rank, size);
  shard.vocab = split_range(config.vocab_size, rank, size);
  shard.head = scored > 0 ? Range{0, scored} : shard.vocab;
  shard.attention.num_heads = shard.heads.size();
  shard.attention.num_kv_heads = shard.kv_heads.size();
  shard.attention.head_dim = config.head_dim;
  shard.attention.group_size = config.num_heads / config.num_kv_heads;
  shard.attention.head_offset =
      shard.heads.begin - shard.kv_heads.begin * shard.attention.group_size;
  return shard;
}

}  // namespace outrider
