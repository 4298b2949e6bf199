// The ordered sum among ranks of one host, through memory that all of them map.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

class SharedMemorySum {
 public:
  static size_t bytes(int ranks);  // of the memory

  // memory: zeroed, aligned to 64 bytes, the same for every rank; outlives this.
  SharedMemorySum(void* memory, int rank, int ranks);

  // x = the ordered_sum of every rank's x, on every rank; all pass the same n.
  // Bound: a line takes some 0.1 µs from core to core, about 16 of them are on their way at a time:
  // (ranks - 1) * n * 4 bytes are read so, and as many lines taken back to be written.
  void sum(float* x /* [n] */, int64_t n);

 private:
  struct alignas(64) Arrival;

  void sum_piece(float* x, int64_t n);
  void await(Arrival& other);

  Arrival* arrivals_;  // [ranks]
  float* parts_;       // [2][ranks, kPieceElements]
  int rank_, ranks_;
  uint32_t round_ = 0;
  int crowded_ = 0;       // more with each wait of late that gave away a slice of time
  int sleepy_waits_ = 0;  // left, since others want the cores
};

}  // namespace outrider
