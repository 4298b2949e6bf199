// A copy by a kernel, for benchmarks: the bound that they are compared with.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace outrider {

// Copies with a kernel that does nothing else: what the memory of the device delivers, half of it
// read and half written. Contiguous, of equal sizes, a multiple of 16 bytes. Throws Error where
// this program was built without CUDA.
void copy_with_kernel(TensorView to, TensorView from, Stream& stream);

}  // namespace outrider
