// Which instruction set the kernels run on. All give the same bits, but amx_bf16, whose products
// are summed in another order (linear.h); with it, too, a row's bits are its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outrider::cpu {

enum class Isa { scalar, avx2, avx512, avx512_bf16, amx_bf16 };

std::string_view isa_name(Isa isa);

// True where this machine executes it, and where vdpbf16ps and vcvtneps2bf16, if they are in it,
// round as linear.h and lanes.h say: those are tried, since a hypervisor may hide AVX-512 BF16 from
// CPUID though it works. `scalar` always does. Asking for amx_bf16 takes the system's permission to
// use tiles, for the whole process.
bool isa_available(Isa isa);

// The available ones, the simplest first.
std::vector<Isa> available_isas();

// The best of those with the same bits that the processor reports; OUTRIDER_CPU_ISA=NAME chooses
// another. Throws Error where the name is unknown or this machine cannot execute it.
Isa select_isa();

}  // namespace outrider::cpu
