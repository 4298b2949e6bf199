// What a collective of the NCCL communicator costs a rank: pure arithmetic.
#pragma once

#include <cstdint>

#include "core/numerics.h"

namespace outrider {

struct ExchangeCost {
  int64_t exchanges = 0;
  int64_t bytes = 0;     // that a rank receives from the others
  int64_t launches = 0;  // kernels: NCCL's, and the ordered sum

  ExchangeCost& operator+=(const ExchangeCost& other);
  bool operator==(const ExchangeCost&) const = default;
};

// Up to this many floats a rank, every rank receives all parts and adds them; above it, each rank
// adds a block and the blocks are gathered, which moves 2 (N - 1) / N of the message instead of
// N - 1, in two exchanges instead of one, and one more for what equal blocks leave. Not measured:
// where 8 ranks at 300 GB/s lose as much by the bytes as by another exchange of some 10 µs. Two
// ranks leave the sum to NCCL.
constexpr int64_t kGatherMaxFloats = 128 * 1024;

// Whether NCCL's own sum is used as it is.
constexpr bool nccl_sums(int ranks, Numerics numerics) {
  return ranks <= 2 || numerics == Numerics::fast;
}
// Scratch in which a rank has the parts of a sum of up to max_elements floats.
int64_t sum_scratch_bytes(int ranks, int64_t max_elements, Numerics numerics);
// A rank's part of a larger sum: whole 16 bytes. What is left, less than 4 floats a rank, is
// gathered as a small sum is.
constexpr int64_t sum_block(int ranks, int64_t elements) { return elements / (4 * ranks) * 4; }

// elements: fp32, on every rank. Of NCCL's own sum: a block of it is added on its way around.
ExchangeCost all_reduce_sum_cost(int ranks, int64_t elements, Numerics numerics = Numerics::exact);
// bytes: that each rank brings.
ExchangeCost all_gather_cost(int ranks, int64_t bytes);

}  // namespace outrider
