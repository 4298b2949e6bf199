#include "backend/cuda/graphs.h"

#include <utility>

#include "kernels/cuda/launch.h"

namespace outrider {

using cuda::check_cuda;

namespace {

// Keys vary with the sizes that rows and contexts are padded to and with which operations there
// are: some dozens on a busy server, some hundreds where it may have thousands of rows.
constexpr size_t kMaxGraphs = 2048;

cudaGraph_t capture(cudaStream_t stream, const std::function<void()>& enqueue) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  return graph;
}

// Null where it fails. Uploaded at once: a device may take the memory no sooner, and a launch that
// finds none would be too late to make room.
cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t graph, cudaStream_t stream) {
  *executable = nullptr;
  cudaError_t result = cudaGraphInstantiate(executable, graph, 0);
  if (result != cudaSuccess) return result;
  result = cudaGraphUpload(*executable, stream);
  if (result != cudaSuccess) cudaGraphExecDestroy(std::exchange(*executable, nullptr));
  return result;
}

}  // namespace

bool Graphs::replay(uint64_t key, cudaStream_t stream, bool collective,
                    const std::function<void()>& enqueue) {
  const auto found = passes_.find(key);
  if (found == passes_.end()) {
    if (passes_.size() >= kMaxGraphs) clear_behind(stream);
    enqueue();
    passes_.emplace(key, Pass{.collective = collective});
    return false;
  }
  Pass& pass = found->second;
  const bool records = pass.graph == nullptr && !pass.without_room;
  if (records) record(pass, stream, enqueue);
  if (pass.graph == nullptr) {
    enqueue();
  } else {
    check_cuda(cudaGraphLaunch(pass.graph, stream), "cudaGraphLaunch");
  }
  return records;
}

void Graphs::record(Pass& pass, cudaStream_t stream, const std::function<void()>& enqueue) {
  const cudaGraph_t graph = capture(stream, enqueue);
  cudaError_t result = instantiate(&pass.graph, graph, stream);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the others make room
    make_room_behind(stream);
    result = instantiate(&pass.graph, graph, stream);
  }
  cudaGraphDestroy(graph);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    pass.without_room = true;
    if (!pass.collective) return;
    throw Error(
        "the device has no room for one CUDA graph; expected it in what is left beside the "
        "KV cache (--gpu-memory-utilization)");
  }
  check_cuda(result, "making a CUDA graph executable");
}

// Room is each rank's own, and a collective has to be part of a graph on all ranks or on none: such
// graphs stay.
void Graphs::make_room_behind(cudaStream_t stream) {
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // some are under way
  for (auto& [key, pass] : passes_) {
    if (pass.collective || pass.graph == nullptr) continue;
    cudaGraphExecDestroy(std::exchange(pass.graph, nullptr));
  }
}

void Graphs::clear_behind(cudaStream_t stream) {
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // some are under way
  clear();
}

void Graphs::clear() {
  for (const auto& [key, pass] : passes_) {
    if (pass.graph != nullptr) cudaGraphExecDestroy(pass.graph);
  }
  passes_.clear();
}

}  // namespace outrider
