// Barriers, votes, shuffles and the instructions of ptx.cuh: what the lanes of a warp do together
// is done by the last of them to come.
#include <algorithm>
#include <bit>
#include <cstring>

#include "testing/emu/block_scheduler.h"
#include "testing/emu/device_memory.h"
#include "testing/emu/include/emu/device.h"

namespace emu {
namespace {

BlockScheduler& block() { return BlockScheduler::current(); }

template <class Operand>
Operand& of_lane(void* const* operands, int lane) {
  return *static_cast<Operand*>(operands[lane]);
}

template <class Body>
void for_each_lane(uint32_t mask, const Body& body) {
  for (; mask != 0; mask &= mask - 1) body(std::countr_zero(mask));
}

float bf16_to_float(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

bool aligned_to_16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

void check_shared(const void* shared, const char* what) {
  if (!aligned_to_16(shared)) block().fail("%s: shared memory not aligned to 16", what);
  if (!block().in_shared(shared, 16) && in_device_memory(shared, 1)) {
    block().fail("%s: expected shared memory, found global memory", what);
  }
}

struct Vote {
  bool predicate;
  uint32_t result;
};

void vote(uint32_t mask, void* const* operands) {
  uint32_t result = 0;
  for_each_lane(mask, [&](int lane) {
    if (of_lane<Vote>(operands, lane).predicate) result |= uint32_t{1} << lane;
  });
  for_each_lane(mask, [&](int lane) { of_lane<Vote>(operands, lane).result = result; });
}

struct Shuffle {
  uint64_t value;
  int source;
  uint64_t result;
};

void exchange(uint32_t mask, void* const* operands) {
  for_each_lane(mask, [&](int lane) {
    auto& shuffle = of_lane<Shuffle>(operands, lane);
    const bool there =
        0 <= shuffle.source && shuffle.source < kWarpLanes && (mask >> shuffle.source & 1) != 0;
    shuffle.result = there ? of_lane<Shuffle>(operands, shuffle.source).value : kPoison;
  });
}

struct Reduce {
  uint32_t value;
  Reduction reduction;
  bool is_signed;
};

uint32_t reduced(uint32_t a, uint32_t b, Reduction reduction, bool is_signed) {
  const bool less = is_signed ? static_cast<int32_t>(a) < static_cast<int32_t>(b) : a < b;
  switch (reduction) {
    case Reduction::sum:
      return a + b;
    case Reduction::min:
      return less ? a : b;
    case Reduction::max:
      return less ? b : a;
    case Reduction::bit_and:
      return a & b;
    case Reduction::bit_or:
      return a | b;
    case Reduction::bit_xor:
      return a ^ b;
  }
  return 0;
}

void reduce_lanes(uint32_t mask, void* const* operands) {
  const auto& first = of_lane<Reduce>(operands, std::countr_zero(mask));
  uint32_t result = first.value;
  for_each_lane(mask & (mask - 1), [&](int lane) {
    result =
        reduced(result, of_lane<Reduce>(operands, lane).value, first.reduction, first.is_signed);
  });
  for_each_lane(mask, [&](int lane) { of_lane<Reduce>(operands, lane).value = result; });
}

struct Match {
  uint64_t value;
  uint32_t result;
};

void match(uint32_t mask, void* const* operands) {
  for_each_lane(mask, [&](int lane) {
    auto& mine = of_lane<Match>(operands, lane);
    mine.result = 0;
    for_each_lane(mask, [&](int other) {
      if (of_lane<Match>(operands, other).value == mine.value) mine.result |= uint32_t{1} << other;
    });
  });
}

struct Multiply {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

// d += a b. Its indices cannot go wrong, and to look at each of them takes far longer than to
// compute.
__attribute__((no_sanitize("address", "alignment"))) void add_product(const float (&a)[16][16],
                                                                      const float (&b)[16][8],
                                                                      float (&d)[16][8]) {
  for (int row = 0; row < 16; ++row) {
    float sums[8];
    for (int column = 0; column < 8; ++column) sums[column] = d[row][column];
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; ++column) d[row][column] = sums[column];
  }
}

void multiply(uint32_t, void* const* operands) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& mine = of_lane<Multiply>(operands, lane);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8, column = 2 * t + i / 2 * 8;
      a[row][column] = bf16_to_float(mine.a[i] & 0xffff);
      a[row][column + 1] = bf16_to_float(mine.a[i] >> 16);
      d[g + i / 2 * 8][2 * t + i % 2] = mine.d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + i * 8][g] = bf16_to_float(mine.b[i] & 0xffff);
      b[2 * t + i * 8 + 1][g] = bf16_to_float(mine.b[i] >> 16);
    }
  }
  add_product(a, b, d);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    float* const mine = of_lane<Multiply>(operands, lane).d;
    for (int i = 0; i < 4; ++i) mine[i] = d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  }
}

void nothing(uint32_t, void* const*) {}

constexpr uint32_t kAllLanes = 0xffffffff;

}  // namespace

int block_barrier(bool predicate, const Where& where) {
  return block().block_barrier(predicate, where);
}

void warp_barrier(uint32_t mask, const Where& where) {
  block().warp_collective(mask, &nothing, nullptr, where);
}

uint32_t ballot(uint32_t mask, bool predicate, const Where& where) {
  Vote operand = {predicate, 0};
  block().warp_collective(mask, &vote, &operand, where);
  return operand.result;
}

uint64_t shuffle(uint32_t mask, uint64_t value, int source, const Where& where) {
  Shuffle operand = {value, source, 0};
  block().warp_collective(mask, &exchange, &operand, where);
  return operand.result;
}

uint32_t reduce(uint32_t mask, uint32_t value, Reduction reduction, bool is_signed,
                const Where& where) {
  Reduce operand = {value, reduction, is_signed};
  block().warp_collective(mask, &reduce_lanes, &operand, where);
  return operand.value;
}

uint32_t match_any(uint32_t mask, uint64_t value, const Where& where) {
  Match operand = {value, 0};
  block().warp_collective(mask, &match, &operand, where);
  return operand.result;
}

void trap(const Where& where) { block().fail("__trap() in %s", where.function_name()); }

void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  const Where& where) {
  Multiply operand = {d, a, b};
  block().warp_collective(kAllLanes, &multiply, &operand, where);
}

// Until a wait, what stands there is poison: neither what was before nor what is to come.
void cp_async_16(void* shared, const void* global, bool valid) {
  check_shared(shared, "cp.async");
  if (!aligned_to_16(global)) block().fail("cp.async: global memory not aligned to 16");
  if (valid && !in_device_memory(global, 16)) {
    block().fail("cp.async: reads what is not global memory");
  }
  std::memset(shared, 0xff, 16);
  block().pending_copies().push_back({shared, valid ? global : nullptr, block().copy_group()});
}

void cp_async_commit() { ++block().copy_group(); }

void cp_async_wait(int groups) {
  auto& copies = block().pending_copies();
  const int closed = block().copy_group();
  const auto complete = [&](PendingCopy& copy) {
    if (copy.group >= closed - groups) return false;
    copy.read();
    std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
    return true;
  };
  copies.erase(std::remove_if(copies.begin(), copies.end(), complete), copies.end());
}

uint4 load_global_16(const void* global) {
  if (!aligned_to_16(global)) block().fail("a load of 16 bytes: not aligned to 16");
  if (!in_device_memory(global, 16)) block().fail("a load of 16 bytes: not from global memory");
  uint4 value;
  std::memcpy(&value, global, sizeof value);
  return value;
}

void* dynamic_shared() { return block().shared(); }

void wait_for_earlier_kernels() { block().wait_for_earlier_kernels(); }

}  // namespace emu
