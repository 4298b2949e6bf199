// Settings of the emulator, from the environment: see README.md.
#pragma once

#include <cstdint>

namespace emu {

// The number that the variable holds; otherwise, where it holds none. Ends the process where it
// holds something else.
uint64_t environment_number(const char* name, uint64_t otherwise);

}  // namespace emu
