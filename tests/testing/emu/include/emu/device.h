// What kernels use of CUDA C++: indices, barriers, votes and shuffles, atomics.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "emu/types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)
#define __grid_constant__
// One block at a time runs on a thread of the host; of one that waits for earlier kernels `grid`
// keeps what stands in them.
#define __shared__ static thread_local

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
constexpr int warpSize = 32;

namespace emu {

using Where = std::source_location;

// What an undefined value reads as: a NaN, -1.
constexpr uint64_t kPoison = ~uint64_t{0};

// Instructions of kernels/cuda/ptx.cuh.
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  const Where& where = Where::current());
void cp_async_16(void* shared, const void* global, bool valid);
void cp_async_commit();
void cp_async_wait(int groups);
uint4 load_global_16(const void* global);
void* dynamic_shared();
void wait_for_earlier_kernels();

int block_barrier(bool predicate, const Where& where);
void warp_barrier(uint32_t mask, const Where& where);
uint32_t ballot(uint32_t mask, bool predicate, const Where& where);
// From `source`, a lane's number; where the mask has not that lane, poison.
uint64_t shuffle(uint32_t mask, uint64_t value, int source, const Where& where);
enum class Reduction : uint8_t { sum, min, max, bit_and, bit_or, bit_xor };
// Of 32-bit integers, signed where is_signed.
uint32_t reduce(uint32_t mask, uint32_t value, Reduction reduction, bool is_signed,
                const Where& where);
uint32_t match_any(uint32_t mask, uint64_t value, const Where& where);
inline int lane() {
  const unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return static_cast<int>(in_block % warpSize);
}
[[noreturn]] void trap(const Where& where);

template <class T>
T shuffle_value(uint32_t mask, T value, int source, const Where& where) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle(mask, bits, source, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emu

inline void __syncthreads(const emu::Where& where = emu::Where::current()) {
  emu::block_barrier(false, where);
}
inline int __syncthreads_count(int predicate, const emu::Where& where = emu::Where::current()) {
  return emu::block_barrier(predicate != 0, where);
}
inline int __syncthreads_or(int predicate, const emu::Where& where = emu::Where::current()) {
  return emu::block_barrier(predicate != 0, where) > 0;
}
inline int __syncthreads_and(int predicate, const emu::Where& where = emu::Where::current()) {
  return emu::block_barrier(predicate == 0, where) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffff,
                       const emu::Where& where = emu::Where::current()) {
  emu::warp_barrier(mask, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const emu::Where& where = emu::Where::current()) {
  return emu::ballot(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate,
                      const emu::Where& where = emu::Where::current()) {
  return emu::ballot(mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const emu::Where& where = emu::Where::current()) {
  return emu::ballot(mask, predicate == 0, where) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, const emu::Where& where = emu::Where::current()) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return emu::match_any(mask, bits, where);
}

// `width` lanes, a power of two, are a segment of their own.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              const emu::Where& where = emu::Where::current()) {
  return emu::shuffle_value(mask, value, emu::lane() / width * width + (source & (width - 1)),
                            where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  const emu::Where& where = emu::Where::current()) {
  const int source = emu::lane() ^ lane_mask;
  const bool inside = source / width <= emu::lane() / width;
  return emu::shuffle_value(mask, value, inside ? source : emu::lane(), where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 const emu::Where& where = emu::Where::current()) {
  const int in_segment = emu::lane() % width;
  const bool inside = static_cast<int>(delta) <= in_segment;
  return emu::shuffle_value(mask, value, emu::lane() - (inside ? static_cast<int>(delta) : 0),
                            where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   const emu::Where& where = emu::Where::current()) {
  const int in_segment = emu::lane() % width;
  const bool inside = in_segment + static_cast<int>(delta) < width;
  return emu::shuffle_value(mask, value, emu::lane() + (inside ? static_cast<int>(delta) : 0),
                            where);
}

#define EMU_REDUCE(name, reduction)                                                               \
  inline unsigned __reduce_##name##_sync(unsigned mask, unsigned value,                           \
                                         const emu::Where& where = emu::Where::current()) {       \
    return emu::reduce(mask, value, emu::Reduction::reduction, false, where);                     \
  }                                                                                               \
  inline int __reduce_##name##_sync(unsigned mask, int value,                                     \
                                    const emu::Where& where = emu::Where::current()) {            \
    return static_cast<int>(                                                                      \
        emu::reduce(mask, static_cast<unsigned>(value), emu::Reduction::reduction, true, where)); \
  }
EMU_REDUCE(add, sum)
EMU_REDUCE(min, min)
EMU_REDUCE(max, max)
EMU_REDUCE(and, bit_and)
EMU_REDUCE(or, bit_or)
EMU_REDUCE(xor, bit_xor)
#undef EMU_REDUCE

// Nothing interrupts a thread between barriers. Integers alone: a sum of floats whose order is left
// to chance has no place in a kernel.
#define EMU_ATOMIC(name, expression)                        \
  template <class T>                                        \
  T name(T* address, std::type_identity_t<T> value) {       \
    static_assert(std::is_integral_v<T> && sizeof(T) >= 4); \
    const T old = *address;                                 \
    *address = expression;                                  \
    return old;                                             \
  }
EMU_ATOMIC(atomicAdd, static_cast<T>(old + value))
EMU_ATOMIC(atomicSub, static_cast<T>(old - value))
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicMax, old < value ? value : old)
EMU_ATOMIC(atomicAnd, old& value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicExch, value)
EMU_ATOMIC(atomicInc, old >= value ? T{0} : old + 1)
#undef EMU_ATOMIC
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) >= 4);
  const T old = *address;
  if (old == compare) *address = value;
  return old;
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap(const emu::Where& where = emu::Where::current()) {
  emu::trap(where);
}
