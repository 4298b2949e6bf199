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
  // room for the graph, all others that have no collective make room, and are recorded anew at
  // their next call. Where that does not help, one without a collective runs as it is from then
  // on; for one with a collective that throws Error.
  bool replay(uint64_t key, cudaStream_t stream, bool collective,
              const std::function<void()>& enqueue);

  // Forgets everything: memory that recorded work refers to is about to move.
  void clear();

 private:
  struct Pass {
    bool collective = false;
    bool without_room = false;
    cudaGraphExec_t graph = nullptr;  // null: it has run, and is not recorded (any more)
  };

  // Leaves pass.graph null where there is no room for it.
  void record(Pass& pass, cudaStream_t stream, const std::function<void()>& enqueue);
  // Both once the stream has done what it was given.
  void make_room_behind(cudaStream_t stream);
  void clear_behind(cudaStream_t stream);

  // As many on each rank, whatever room it has: so all of them clear it before the same pass.
  std::unordered_map<uint64_t, Pass> passes_;
};

}  // namespace outrider
