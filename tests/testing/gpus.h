// The GPUs that a test runs on: the emulator's, or this machine's.
#pragma once

#include <gtest/gtest.h>

#include "backend/cuda_devices.h"

namespace outrider {

inline int num_gpus() { return static_cast<int>(cuda_devices().size()); }

inline bool emulated_gpus() { return cuda_devices().front().name == "emulator"; }

// Of a rank that is a thread of this process. NCCL wants a GPU for each; the emulator does not.
inline int gpu_of_thread(int rank) { return rank % num_gpus(); }

#define NEED_GPUS(n)                        \
  if (!emulated_gpus() && num_gpus() < (n)) \
  GTEST_SKIP() << (n) << " ranks that are threads need as many GPUs; there are " << num_gpus()

}  // namespace outrider
