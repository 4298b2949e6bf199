// Stream: the order in which a backend carries out what is enqueued. The CPU runs at once and
// ignores it.
#pragma once

namespace outrider {

struct Stream {
  void* handle = nullptr;  // cudaStream_t on a GPU
};

}  // namespace outrider
