// The GPUs that a test runs on: the emulator's, or this machine's.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "backend/cuda_devices.h"

namespace outrider {

inline int num_gpus() { return static_cast<int>(cuda_devices().size()); }

inline bool emulated_gpus() { return cuda_devices().front().name == "emulator"; }

// Of a rank that is a thread of this process. NCCL wants a GPU for each.
inline int gpu_of_thread(int rank) { return rank % num_gpus(); }

// The emulator has as many as a test needs, from then on.
inline bool have_gpus(int n) {
  if (emulated_gpus() && num_gpus() < n) {
    setenv("OUTRIDER_EMU_DEVICES", std::to_string(n).c_str(), 1);
  }
  return num_gpus() >= n;
}

#define NEED_GPUS(n) \
  if (!have_gpus(n)) \
  GTEST_SKIP() << (n) << " ranks that are threads need as many GPUs; there are " << num_gpus()

}  // namespace outrider
