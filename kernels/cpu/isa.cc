#include "kernels/cpu/isa.h"

#include <immintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>

#include "core/bf16.h"
#include "core/error.h"
#include "kernels/math.h"

namespace outrider::cpu {
namespace {

constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx_bf16};

sigjmp_buf illegal_instruction;

void on_illegal_instruction(int) { siglongjmp(illegal_instruction, 1); }

// sums[i] += the dot product of 16 pairs of bf16 each.
__attribute__((target("avx512f,avx512bf16"), noinline)) void dot_pairs(const uint32_t* a,
                                                                       const uint32_t* b,
                                                                       float* sums) {
  const auto pairs_a = (__m512bh)_mm512_loadu_si512(a);
  const auto pairs_b = (__m512bh)_mm512_loadu_si512(b);
  _mm512_storeu_ps(sums, _mm512_dpbf16_ps(_mm512_loadu_ps(sums), pairs_a, pairs_b));
}

// x rounded to bf16, 16 of them.
__attribute__((target("avx512f,avx512bf16"), noinline)) void round_all(const float* x,
                                                                       uint16_t* rounded) {
  const auto bits = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(rounded), bits);
}

float odd_of(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); }
float even_of(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }

bool same_number(float a, float b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0;
}

// vdpbf16ps against its definition in linear.h, and vcvtneps2bf16 against that of lanes.h, on
// numbers of every magnitude.
bool instructions_are_exact() {
  std::mt19937 random(1);
  for (int round = 0; round < 256; ++round) {
    uint32_t a[16], b[16];
    float sums[16], expected[16], exact[16];
    uint16_t rounded[16];
    for (int i = 0; i < 16; ++i) {
      // Any exponent, to meet denormals and infinities; then near 1, where every sum rounds.
      const uint32_t keep = round % 2 == 0 ? 0xffffffffu : 0x80ff80ffu;
      const uint32_t set = round % 2 == 0 ? 0u : 0x3f003f00u;
      a[i] = (random() & keep) | set;
      b[i] = (random() & keep) | set;
      const uint32_t bits = (random() & (keep | 0xffffu)) | (set & 0xffff0000u);
      sums[i] = flush_f32(__builtin_bit_cast(float, bits));
      exact[i] = __builtin_bit_cast(float, bits);
      expected[i] = fma_f32(odd_of(a[i]), odd_of(b[i]), sums[i]);
      expected[i] = fma_f32(even_of(a[i]), even_of(b[i]), expected[i]);
    }
    dot_pairs(a, b, sums);
    round_all(exact, rounded);
    for (int i = 0; i < 16; ++i) {
      if (!same_number(sums[i], expected[i])) return false;
      if (rounded[i] != to_bf16(flush_f32(exact[i])).bits) return false;
    }
  }
  return true;
}

// Executes AVX-512 BF16: false where that is an illegal instruction, or another operation. A signal
// resets the thread's floating-point environment, and siglongjmp does not bring it back.
bool try_avx512_bf16() {
  const unsigned float_environment = _mm_getcsr();
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = on_illegal_instruction;
  sigemptyset(&action.sa_mask);
  CHECK(sigaction(SIGILL, &action, &before) == 0);
  const bool works = sigsetjmp(illegal_instruction, 1) == 0 && instructions_are_exact();
  _mm_setcsr(float_environment);
  CHECK(sigaction(SIGILL, &before, nullptr) == 0);
  return works;
}

// Linux gives a process the registers of tiles when it asks, for all its threads.
bool ask_for_tiles() {
  constexpr int kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

// What CPUID says.
bool reported(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("x86-64-v3");
    case Isa::avx512:
      return __builtin_cpu_supports("x86-64-v4");
    case Isa::avx512_bf16:
      return reported(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
    case Isa::amx_bf16:
      return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
  }
  return false;
}

std::string names() {
  std::string names;
  for (Isa isa : kIsas) {
    if (!names.empty()) names += ", ";
    names += isa_name(isa);
  }
  return names;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_bf16:
      return "avx512_bf16";
    case Isa::amx_bf16:
      return "amx_bf16";
  }
  return "unknown";
}

bool isa_available(Isa isa) {
  if (isa < Isa::avx512_bf16) return reported(isa);
  static const bool works = reported(Isa::avx512) && try_avx512_bf16();
  if (isa == Isa::avx512_bf16) return works;
  static const bool may_use_tiles = works && reported(isa) && ask_for_tiles();
  return may_use_tiles;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> available;
  for (Isa isa : kIsas) {
    if (isa_available(isa)) available.push_back(isa);
  }
  return available;
}

Isa select_isa() {
  if (const char* wanted = std::getenv("OUTRIDER_CPU_ISA"); wanted != nullptr) {
    for (Isa isa : kIsas) {
      if (isa_name(isa) != wanted) continue;
      if (isa_available(isa)) return isa;
      throw Error("OUTRIDER_CPU_ISA is " + std::string(wanted) +
                  ", which this machine cannot execute");
    }
    throw Error("OUTRIDER_CPU_ISA is \"" + std::string(wanted) + "\"; expected one of " + names());
  }
  Isa best = Isa::scalar;
  for (Isa isa : kIsas) {
    if (isa <= Isa::avx512_bf16 && reported(isa) && isa_available(isa)) best = isa;
  }
  return best;
}

}  // namespace outrider::cpu
