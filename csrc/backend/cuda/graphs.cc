#include "backend/cuda/graphs.h"

#include "kernels/cuda/launch.h"

namespace outrider {

using cuda::check_cuda;

namespace {

// Keys vary with the size that rows are padded to and with which operations there are: some dozens
// on a busy server, some hundreds where it may have thousands of rows.
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

}  // namespace

void Graphs::replay(uint64_t key, cudaStream_t stream, const std::function<void()>& enqueue) {
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kMaxGraphs) clear_behind(stream);
    enqueue();
    graphs_.emplace(key, nullptr);
    return;
  }
  cudaGraphExec_t executable = found->second;
  if (executable == nullptr) {
    executable = record(stream, enqueue);
    graphs_[key] = executable;  // it may have been forgotten with the others
  }
  check_cuda(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
}

cudaGraphExec_t Graphs::record(cudaStream_t stream, const std::function<void()>& enqueue) {
  const cudaGraph_t graph = capture(stream, enqueue);
  cudaGraphExec_t executable = nullptr;
  cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the others make room
    clear_behind(stream);
    result = cudaGraphInstantiate(&executable, graph, 0);
  }
  cudaGraphDestroy(graph);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error(
        "the device has no room for one CUDA graph; expected it in what is left beside the "
        "KV cache (--gpu-memory-utilization)");
  }
  check_cuda(result, "cudaGraphInstantiate");
  return executable;
}

void Graphs::clear_behind(cudaStream_t stream) {
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // some are under way
  clear();
}

void Graphs::clear() {
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
  graphs_.clear();
}

}  // namespace outrider
