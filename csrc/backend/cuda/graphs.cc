#include "backend/cuda/graphs.h"

#include "kernels/cuda/launch.h"

namespace outrider {

using cuda::check_cuda;

namespace {

// Keys vary with rows, sequences and rounds of drafting: some hundreds on a busy server.
constexpr size_t kMaxGraphs = 2048;

cudaGraphExec_t record(cudaStream_t stream, const std::function<void()>& enqueue) {
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
  cudaGraphExec_t executable = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(result, "cudaGraphInstantiate");
  return executable;
}

}  // namespace

void Graphs::replay(uint64_t key, cudaStream_t stream, const std::function<void()>& enqueue) {
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kMaxGraphs) {
      check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // some are under way
      clear();
    }
    enqueue();
    graphs_.emplace(key, nullptr);
    return;
  }
  if (found->second == nullptr) found->second = record(stream, enqueue);
  check_cuda(cudaGraphLaunch(found->second, stream), "cudaGraphLaunch");
}

void Graphs::clear() {
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
  graphs_.clear();
}

}  // namespace outrider
