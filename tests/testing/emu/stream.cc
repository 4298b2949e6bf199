#include "testing/emu/stream.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "testing/emu/device_memory.h"
#include "testing/emu/environment.h"
#include "testing/emu/grid.h"

namespace emu {

// Before a kernel, those behind it begin that may. next(i): the i-th operation behind this one;
// null: there is none yet.
template <class Next>
static std::string run_operation(const Operation& operation, const Next& next) {
  constexpr size_t kFarthest = 4;  // kernels behind it
  for (size_t i = 0; operation.is_kernel && i < kFarthest; ++i) {
    const Operation* const later = next(i);
    if (later == nullptr || later->begin == nullptr) break;
    std::string failure = later->begin();
    if (!failure.empty()) return failure;
  }
  return operation.run();
}

// Operations that have not run yet.
class StreamQueue {
 public:
  explicit StreamQueue(bool blocking) : blocking_(blocking) {}

  bool blocking() const { return blocking_; }
  std::thread::id last_user() const { return last_user_; }

  // Returns how many were ever enqueued.
  uint64_t push(Operation operation) {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(operation));
    last_user_ = std::this_thread::get_id();
    asked_ = false;
    return ++num_enqueued_;
  }
  uint64_t num_enqueued() {
    const std::lock_guard lock(mutex_);
    return num_enqueued_;
  }
  // False once after each push: whoever asks whether work is done has to ask again.
  bool answer() {
    const std::lock_guard lock(mutex_);
    return std::exchange(asked_, true) || pending_.empty();
  }

  void run_until(uint64_t count) {
    if (num_done_ >= count) return;
    const std::lock_guard lock(running_);
    const DeviceAccess access;
    while (num_done_ < count) {
      const Operation operation = pop();
      std::string failure = device_failure();
      if (failure.empty()) {
        try {
          const uint64_t behind = count - num_done_ - 1;
          failure =
              run_operation(operation, [&](size_t i) { return i < behind ? pending(i) : nullptr; });
        } catch (const std::exception& error) {
          failure = error.what();
        }
        if (!failure.empty()) fail_device(failure);
      }
      // Whoever failed: what has begun has no turn any more.
      if (!failure.empty()) abandon_early_blocks();
      ++num_done_;
    }
  }

 private:
  // Null: there is none. It stays where it is until it is its turn.
  const Operation* pending(size_t i) {
    const std::lock_guard lock(mutex_);
    return i < pending_.size() ? &pending_[i] : nullptr;
  }
  Operation pop() {
    const std::lock_guard lock(mutex_);
    Operation operation = std::move(pending_.front());
    pending_.pop_front();
    return operation;
  }

  const bool blocking_;
  std::mutex mutex_;
  std::deque<Operation> pending_;
  uint64_t num_enqueued_ = 0;
  bool asked_ = false;
  std::atomic<std::thread::id> last_user_ = std::this_thread::get_id();
  std::recursive_mutex running_;  // an operation may wait for a stream that waited for this one
  std::atomic<uint64_t> num_done_ = 0;
};

namespace {

// What a capture records; shared by all streams that take part.
struct Capture {
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  std::vector<Operation> operations;
  std::vector<cudaStream_t> members;  // beside the origin
  std::set<cudaStream_t> forks;       // members with work that the origin has not waited for
  bool invalid = false;
};

thread_local std::shared_ptr<Capture> capture_of_thread;

struct Streams {
  std::mutex mutex;
  std::vector<std::weak_ptr<StreamQueue>> queues;
  std::deque<std::string> failures;  // the last is the device's, unless forgotten
  bool failed = false;
};

Streams& streams() {
  static Streams& streams = *new Streams;
  return streams;
}

std::shared_ptr<StreamQueue> make_queue(bool blocking) {
  auto queue = std::make_shared<StreamQueue>(blocking);
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.queues, [](const auto& other) { return other.expired(); });
  all.queues.push_back(queue);
  return queue;
}

// Those of the calling thread.
std::vector<std::shared_ptr<StreamQueue>> queues_in_use() {
  std::vector<std::shared_ptr<StreamQueue>> mine;
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  for (const auto& weak : all.queues) {
    auto queue = weak.lock();
    if (queue != nullptr && queue->last_user() == std::this_thread::get_id()) {
      mine.push_back(std::move(queue));
    }
  }
  return mine;
}

}  // namespace
}  // namespace emu

struct CUstream_st {
  std::shared_ptr<emu::StreamQueue> queue;
  std::shared_ptr<emu::Capture> capture;
};

struct CUevent_st {
  emu::StreamPoint point;
  // Where it was recorded in a capture: what waits for it takes part.
  std::shared_ptr<emu::Capture> capture;
  cudaStream_t captured_stream = nullptr;
  // When the last record ran; graphs that record it hold this as well.
  struct Time {
    std::shared_ptr<std::chrono::steady_clock::time_point> last;
  };
  std::shared_ptr<Time> time = std::make_shared<Time>();
  bool timed = true;
};

struct CUgraph_st {
  std::vector<emu::Operation> operations;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<emu::Operation>> operations;
  bool uploaded = false;
};

namespace emu {
namespace {

// Every thread has a default stream of its own, so that ranks can be threads.
CUstream_st& resolve(cudaStream_t stream) {
  thread_local CUstream_st default_stream{make_queue(/*blocking=*/true), nullptr};
  return stream == nullptr ? default_stream : *stream;
}

StreamPoint end_of(cudaStream_t stream) {
  const auto& queue = resolve(stream).queue;
  return {queue, queue->num_enqueued()};
}

// Behind the default stream's work come blocking streams', and the other way round.
void wait_for_default(cudaStream_t stream) {
  CUstream_st& own = resolve(stream);
  if (!own.queue->blocking()) return;
  for (const auto& queue : queues_in_use()) {
    const bool waits = stream == nullptr ? queue->blocking() : queue == resolve(nullptr).queue;
    if (!waits || queue == own.queue) continue;
    const StreamPoint point{queue, queue->num_enqueued()};
    own.queue->push([point] {
      run_until(point);
      return std::string();
    });
  }
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
  CUstream_st& own = resolve(stream);
  if (own.capture != nullptr) {
    if (own.capture->invalid) return cudaErrorStreamCaptureInvalidated;
    own.capture->operations.push_back(std::move(operation));
    if (stream != own.capture->origin) own.capture->forks.insert(stream);
    return cudaSuccess;
  }
  wait_for_default(stream);
  own.queue->push(std::move(operation));
  return device_error();
}

cudaError_t run_until(const StreamPoint& point) {
  if (point.queue != nullptr) point.queue->run_until(point.count);
  return device_error();
}

cudaError_t run_stream(cudaStream_t stream) { return run_until(end_of(stream)); }

cudaError_t run_blocking_streams() {
  for (const auto& queue : queues_in_use()) {
    if (queue->blocking()) queue->run_until(queue->num_enqueued());
  }
  return device_error();
}

cudaError_t run_everything() {
  for (const auto& queue : queues_in_use()) queue->run_until(queue->num_enqueued());
  return device_error();
}

bool is_capturing(cudaStream_t stream) { return resolve(stream).capture != nullptr; }

cudaError_t refuse_in_capture() {
  if (capture_of_thread == nullptr || capture_of_thread->mode == cudaStreamCaptureModeRelaxed) {
    return cudaSuccess;
  }
  capture_of_thread->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

const char* device_failure() {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  return all.failed ? all.failures.back().c_str() : "";
}

cudaError_t device_error() {
  return *device_failure() == '\0' ? cudaSuccess : cudaErrorLaunchFailure;
}

void fail_device(const std::string& what) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  if (std::exchange(all.failed, true)) return;
  all.failures.push_back("emulator: " + what);
}

void forget_device_failure() {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  all.failed = false;
}

}  // namespace emu

using emu::capture_of_thread;
using emu::resolve;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = new CUstream_st{emu::make_queue(flags != cudaStreamNonBlocking), nullptr};
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const cudaError_t result = emu::run_stream(stream);
  delete stream;
  return result;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t refused = emu::refuse_in_capture()) return refused;
  if (emu::is_capturing(stream)) return cudaErrorStreamCaptureUnsupported;
  return emu::run_stream(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t refused = emu::refuse_in_capture()) return refused;
  if (!resolve(stream).queue->answer()) return cudaErrorNotReady;
  return emu::run_stream(stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CUstream_st& own = resolve(stream);
  if (event->capture != nullptr) {
    if (own.capture == nullptr) {
      own.capture = event->capture;
      own.capture->members.push_back(stream);
    }
    if (own.capture != event->capture) return cudaErrorStreamCaptureUnsupported;
    if (stream == own.capture->origin) own.capture->forks.erase(event->captured_stream);
    return cudaSuccess;
  }
  if (own.capture != nullptr) {
    own.capture->invalid = true;  // outside work cannot be waited for
    return cudaErrorStreamCaptureUnsupported;
  }
  if (event->point.queue == nullptr || event->point.queue == own.queue) return cudaSuccess;
  return emu::enqueue(stream, [point = event->point] {
    emu::run_until(point);
    return std::string();
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return emu::enqueue(stream, [function, argument] {
    function(argument);
    return std::string();
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUstream_st& own = resolve(stream);
  event->capture = own.capture;
  event->captured_stream = stream;
  if (own.capture != nullptr) return cudaSuccess;
  event->time->last = std::make_shared<std::chrono::steady_clock::time_point>();
  const cudaError_t result = emu::enqueue(stream, [time = event->time->last] {
    *time = std::chrono::steady_clock::now();
    return std::string();
  });
  event->point = emu::end_of(stream);
  return result;
}

// External: a node of the graph, which records the event whenever it runs.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags == cudaEventRecordDefault) return cudaEventRecord(event, stream);
  if (flags != cudaEventRecordExternal || !emu::is_capturing(stream)) return cudaErrorInvalidValue;
  return emu::enqueue(stream, [time = event->time] {
    time->last =
        std::make_shared<std::chrono::steady_clock::time_point>(std::chrono::steady_clock::now());
    return std::string();
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t refused = emu::refuse_in_capture()) return refused;
  if (event->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  return emu::run_until(event->point);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t refused = emu::refuse_in_capture()) return refused;
  if (event->point.queue != nullptr && !event->point.queue->answer()) return cudaErrorNotReady;
  return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (!start->timed || !end->timed || start->capture != nullptr || end->capture != nullptr ||
      start->time->last == nullptr || end->time->last == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  const auto from = *start->time->last, to = *end->time->last;
  for (const auto& time : {from, to}) {
    if (time.time_since_epoch().count() == 0) return cudaErrorNotReady;
  }
  *ms = std::chrono::duration<float, std::milli>(to - from).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || stream->capture != nullptr || capture_of_thread != nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  capture_of_thread = std::make_shared<emu::Capture>();
  capture_of_thread->origin = stream;
  capture_of_thread->mode = mode;
  stream->capture = capture_of_thread;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || stream->capture == nullptr || stream->capture != capture_of_thread ||
      stream->capture->origin != stream) {
    return cudaErrorInvalidValue;
  }
  const auto capture = std::exchange(stream->capture, nullptr);
  capture_of_thread = nullptr;
  for (const cudaStream_t member : capture->members) resolve(member).capture = nullptr;
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!capture->forks.empty()) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{std::move(capture->operations)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const auto& capture = resolve(stream).capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

static std::atomic<uint64_t> num_executables = 0, num_uploaded = 0;

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  if (num_executables >= emu::environment_number("OUTRIDER_EMU_GRAPHS", UINT64_MAX)) {
    return cudaErrorMemoryAllocation;
  }
  ++num_executables;
  *executable =
      new CUgraphExec_st{std::make_shared<const std::vector<emu::Operation>>(graph->operations)};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t) {
  if (executable->uploaded) return cudaSuccess;
  if (num_uploaded >= emu::environment_number("OUTRIDER_EMU_UPLOADED_GRAPHS", UINT64_MAX)) {
    return cudaErrorMemoryAllocation;
  }
  ++num_uploaded;
  executable->uploaded = true;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t refused = cudaGraphUpload(executable, stream)) return refused;
  return emu::enqueue(stream, [operations = executable->operations] {
    for (size_t at = 0; at < operations->size(); ++at) {
      std::string failure = emu::run_operation((*operations)[at], [&](size_t i) {
        return at + 1 + i < operations->size() ? &(*operations)[at + 1 + i] : nullptr;
      });
      if (!failure.empty()) return failure;
    }
    return std::string();
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, CUgraphNode_st** nodes, size_t* count) {
  if (nodes != nullptr) return cudaErrorInvalidValue;
  *count = graph->operations.size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  --num_executables;
  if (executable->uploaded) --num_uploaded;
  delete executable;
  return cudaSuccess;
}
