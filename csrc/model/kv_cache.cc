#include "model/kv_cache.h"

#include <algorithm>
#include <array>

#include "core/digest.h"

namespace outrider {

namespace {

int64_t pages_for(int64_t positions) { return (positions + kPageTokens - 1) / kPageTokens; }

// Bytes of one page in one layer, keys or values alone.
int64_t layer_page_bytes(const AttentionShape& shape) {
  return shape.num_kv_heads * kPageTokens * shape.head_dim *
         static_cast<int64_t>(dtype_bytes(DType::bf16));
}

// Systems find memory when it is first written. All layers come to a fresh piece of it in the same
// step, so that one step would wait for as many pieces as there are layers, twice.
void touch(Backend& backend, const Buffer& buffer, int64_t bytes, Stream& stream) {
  const TensorView all = buffer.view(DType::u8, {bytes});
  // Outlives the copy, should a device read the memory of its host by itself.
  static constexpr std::array<uint8_t, 1 << 16> zeros{};
  int64_t done = std::min<int64_t>(bytes, zeros.size());
  backend.copy_from_host(all.rows(0, done), zeros.data(), stream);
  while (done < bytes) {
    const int64_t next = std::min(2 * done, bytes);
    backend.copy(all.rows(done, next), all.rows(0, next - done), stream);
    done = next;
  }
}

}  // namespace

KvCache::KvCache(Backend& backend, int64_t num_layers, const AttentionShape& shape,
                 int64_t num_pages, int64_t num_slots, int64_t max_positions)
    : backend_(backend),
      shape_(shape),
      num_layers_(num_layers),
      num_pages_(num_pages),
      max_pages_(pages_for(max_positions)),
      keys_(backend.allocate(num_layers * num_pages * layer_page_bytes(shape))),
      values_(backend.allocate(num_layers * num_pages * layer_page_bytes(shape))),
      device_tables_(backend.allocate(num_slots * max_pages_ * sizeof(int32_t))),
      tables_(num_slots) {
  CHECK(num_layers > 0 && num_pages > 0 && num_pages <= INT32_MAX && num_slots > 0 &&
        max_positions > 0);
  for (auto& table : tables_) table.reserve(max_pages_);
  Stream stream = backend.make_stream();
  for (const Buffer* storage : {&keys_, &values_}) {
    touch(backend, *storage, num_layers * num_pages * layer_page_bytes(shape), stream);
  }
  backend.synchronize(stream);
}

void KvCache::set_pages(int64_t slot, int64_t first, std::span<const int32_t> pages,
                        Stream& stream) {
  std::vector<int32_t>& table = tables_.at(slot);
  const auto count = static_cast<int64_t>(pages.size());
  CHECK(0 <= first && first <= static_cast<int64_t>(table.size()) && first + count <= max_pages_);
  for (const int32_t page : pages) CHECK(0 <= page && page < num_pages_);
  table.resize(first);
  table.insert(table.end(), pages.begin(), pages.end());
  const TensorView row = page_tables().rows(slot, slot + 1).slice(1, first, first + count);
  backend_.copy_from_host(row, table.data() + first, stream);
}

void KvCache::deal_pages(Stream& stream) {
  const auto num_slots = static_cast<int64_t>(tables_.size());
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < max_pages_ && i * num_slots + slot < num_pages_; ++i) {
      pages.push_back(static_cast<int32_t>(i * num_slots + slot));
    }
    set_pages(slot, 0, pages, stream);
  }
}

TensorView KvCache::page_tables() const {
  return device_tables_.view(DType::i32, {static_cast<int64_t>(tables_.size()), max_pages_});
}

TensorView KvCache::k_pages(int64_t layer) const { return pages(keys_, layer); }
TensorView KvCache::v_pages(int64_t layer) const { return pages(values_, layer); }

TensorView KvCache::pages(const Buffer& storage, int64_t layer) const {
  CHECK(0 <= layer && layer < num_layers_);
  return storage.view(DType::bf16, {num_pages_, shape_.num_kv_heads, kPageTokens, shape_.head_dim},
                      layer * num_pages_ * layer_page_bytes(shape_));
}

uint64_t KvCache::state_digest() const {
  uint64_t state = 0;
  for (const std::vector<int32_t>& table : tables_) {
    const auto length = static_cast<uint64_t>(table.size());
    state = digest(&length, sizeof length, state);
    state = digest(table.data(), table.size() * sizeof(int32_t), state);
  }
  return state;
}

int64_t KvCache::page_bytes(int64_t num_layers, const AttentionShape& shape) {
  return 2 * num_layers * layer_page_bytes(shape);
}

}  // namespace outrider
