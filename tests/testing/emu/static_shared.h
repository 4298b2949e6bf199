// Variables that kernels declare __shared__, which the emulator keeps as thread_local statics.
#pragma once

namespace emu {

// Fills those of the calling thread with poison, as a block finds them.
void poison_static_shared();

}  // namespace emu
