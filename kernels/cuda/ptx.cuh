// The instructions that CUDA C++ has no name for. The only file with inline PTX, and the only one
// that knows of the emulator, which computes the same on a CPU: emu:: is in tests/testing/emu/.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace outrider::cuda {

// A warp multiplies: d += a b, bf16 in, fp32 sums. a: 16 x 16 by rows, b: 16 x 8 by columns, d:
// 16 x 8. With g = lane / 4 and t = lane % 4, and two bf16 in a word, the lower column (a) or row
// (b) in the lower half, a lane holds
//   a[0]: row g, columns 2t, 2t + 1    a[1]: row g + 8, the same columns
//   a[2]: row g, columns 2t + 8, …     a[3]: row g + 8, the same columns
//   b[0]: rows 2t, 2t + 1, column g    b[1]: rows 2t + 8, 2t + 9, column g
//   d[0], d[1]: row g, columns 2t, 2t + 1;   d[2], d[3]: row g + 8, the same columns
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef OUTRIDER_EMULATED
  emu::mma_m16n8k16(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#ifndef OUTRIDER_EMULATED
__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

// Begins to copy 16 bytes, both sides aligned to 16, past the first-level cache. What arrives is
// there after cp_async_wait, for other threads behind a barrier after that. Where !valid, zeros
// arrive and `global`, which must still be an address, is not read.
__device__ inline void cp_async_16(void* shared, const void* global, bool valid) {
#ifdef OUTRIDER_EMULATED
  emu::cp_async_16(shared, global, valid);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
#endif
}

// Closes this thread's group of copies (which may be empty).
__device__ inline void cp_async_commit() {
#ifdef OUTRIDER_EMULATED
  emu::cp_async_commit();
#else
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until no more than the N latest closed groups of this thread are under way.
template <int N>
__device__ inline void cp_async_wait() {
#ifdef OUTRIDER_EMULATED
  emu::cp_async_wait(N);
#else
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
#endif
}

// 16 bytes, aligned to 16, that the kernel reads once and nobody writes while it runs.
__device__ inline uint4 load_streaming_16(const void* global) {
#ifdef OUTRIDER_EMULATED
  return emu::load_global_16(global);
#else
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
#endif
}

// 2^x to 2 units in the last place, in one instruction; zero where that is below the normal
// numbers.
__device__ inline float exp2_approximate(float x) {
#ifdef OUTRIDER_EMULATED
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
#endif
}

// One of `blocks` arrives: *arrivals counts them, and is 0 again behind the last. What this thread
// knows to be written is there for whoever arrives later, and what those knew who came before is
// there for this thread. Returns how many they were.
__device__ inline unsigned count_arrival(unsigned* arrivals, unsigned blocks) {
#ifdef OUTRIDER_EMULATED
  return atomicInc(arrivals, blocks - 1);
#else
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;\n"
               : "=r"(before)
               : "l"(arrivals), "r"(blocks - 1)
               : "memory");
  return before;
#endif
}

// Lets the next kernel of the stream begin, then waits until those before this one are over and
// what they wrote is there. A kernel that launch_overlapped starts calls it in every thread, before
// the thread reads what they wrote or writes at all. Before it, any of the kernels back to the last
// that was launched plainly may still be running, and none before that.
__device__ inline void wait_for_earlier_kernels() {
#if defined(OUTRIDER_EMULATED)
  emu::wait_for_earlier_kernels();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The block's dynamic shared memory, aligned to 128 bytes: what was asked for at the launch.
template <class T>
__device__ inline T* dynamic_shared() {
#ifdef OUTRIDER_EMULATED
  return static_cast<T*>(emu::dynamic_shared());
#else
  extern __shared__ __align__(128) unsigned char outrider_dynamic_shared[];
  return reinterpret_cast<T*>(outrider_dynamic_shared);
#endif
}

}  // namespace outrider::cuda
