// What this machine's memory can deliver: the bound of decoding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/buffer.h"

namespace outrider {

// More than any last-level cache holds.
constexpr size_t kBandwidthBytes = size_t{1} << 30;

constexpr size_t kReadBlock = size_t{1} << 16;

// Reads everything once; `data` is aligned to 64 bytes, `bytes` a multiple of kReadBlock. Returns
// the exclusive or.
uint64_t read_all(const std::byte* data, size_t bytes);

// Bytes a second that this thread reads from memory. Ranks that call it together measure what each
// gets while all read.
class ReadBandwidth {
 public:
  ReadBandwidth();
  double pass() const;  // over kBandwidthBytes, once

 private:
  Buffer buffer_;
};

// The median of five passes.
double measure_read_bandwidth();

}  // namespace outrider
