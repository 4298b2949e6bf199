// Graphs: what was enqueued on a stream once, launched again as one CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <unordered_map>

namespace outrider {

class Graphs {
 public:
  Graphs() = default;
  ~Graphs() { clear(); }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // See Backend::replay. The first call with a key runs `enqueue` as it is, so that whatever it
  // does once (sizes of shared memory) is done; the second records it. Where the device has no
  // room for the graph, all others are forgotten; throws Error where that does not help.
  void replay(uint64_t key, cudaStream_t stream, const std::function<void()>& enqueue);

  // Forgets everything: memory that recorded work refers to is about to move.
  void clear();

 private:
  cudaGraphExec_t record(cudaStream_t stream, const std::function<void()>& enqueue);
  void clear_behind(cudaStream_t stream);  // once it has done what it was given

  // Null: run once, not recorded yet.
  std::unordered_map<uint64_t, cudaGraphExec_t> graphs_;
};

}  // namespace outrider
