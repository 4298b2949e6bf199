// The order of work on the device. What is enqueued runs when somebody waits for it, on the thread
// that waits, and not before: whoever reads a result without waiting, or changes what a copy has
// yet to read, is seen. Other streams stay behind unless they are waited for as well.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace emu {

// Returns what went wrong, empty where nothing did.
using Action = std::function<std::string()>;

// A graph runs it many times.
struct Operation {
  template <class Run>
  requires std::is_invocable_r_v<std::string, Run&> Operation(Run run) : run(std::move(run)) {}

  Action run;
  bool is_kernel = false;
  // Of a kernel that may begin while those before it run: begins it, if it has not begun and so the
  // lot falls. Null: it may not.
  Action begin;
};

class StreamQueue;

// A point of a stream: behind the first `count` operations that were ever enqueued on it.
struct StreamPoint {
  std::shared_ptr<StreamQueue> queue;  // null: nothing to wait for
  uint64_t count = 0;
};

// Records the operation where the stream is capturing.
cudaError_t enqueue(cudaStream_t stream, Operation operation);

// Carry out what is pending up to there: on one stream; on the default stream and those that wait
// for it; on all streams that the calling thread was the last to use.
cudaError_t run_until(const StreamPoint& point);
cudaError_t run_stream(cudaStream_t stream);
cudaError_t run_blocking_streams();
cudaError_t run_everything();

bool is_capturing(cudaStream_t stream);
// For calls that are not allowed while the calling thread captures: the capture is lost, and the
// call's result is not cudaSuccess.
cudaError_t refuse_in_capture();

// The first thing that went wrong on the device since cudaDeviceReset; lives for ever.
const char* device_failure();
cudaError_t device_error();  // for calls that a device which has failed does not do
void fail_device(const std::string& what);
void forget_device_failure();

}  // namespace emu
