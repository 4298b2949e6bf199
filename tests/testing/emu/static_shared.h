// Variables that kernels declare __shared__, which the emulator keeps as thread_local statics.
#pragma once

#include <cstddef>
#include <vector>

namespace emu {

// Fills those of the calling thread with poison, as a block finds them.
void poison_static_shared();

// What they hold, and what that brings back.
std::vector<std::byte> save_static_shared();
void restore_static_shared(const std::vector<std::byte>& saved);

}  // namespace emu
