// StreamTimer: how long work on a stream takes, on the clock of what runs it. For benchmarks.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"

namespace outrider {

class StreamTimer {
 public:
  virtual ~StreamTimer() = default;

  virtual void start(Stream& stream) = 0;
  virtual void stop(Stream& stream) = 0;
  // Waits. From when the stream got to `start` to when it got to `stop`.
  virtual double seconds() = 0;
};

// The host's clock, around all that the backend does on the stream.
std::unique_ptr<StreamTimer> make_host_timer(Backend& backend);

// CUDA events, on the calling thread's device. Throws Error where this program was built without
// CUDA.
std::unique_ptr<StreamTimer> make_cuda_timer();

// Copies with a kernel that does nothing else: what the memory of the device delivers, half of it
// read and half written. Contiguous, of equal sizes, a multiple of 16 bytes. Throws as above.
void copy_with_kernel(TensorView to, TensorView from, Stream& stream);

}  // namespace outrider
