// Staged: an array that the host fills and the backend reads.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace outrider {

template <typename T>
class Staged {
 public:
  Staged(Backend& backend, int64_t size) : Staged(backend, size, size) {}
  // With more room on the host, for what one upload after another brings to the same place.
  Staged(Backend& backend, int64_t size, int64_t host_size)
      : backend_(backend),
        host_(backend.allocate_pinned(host_size * sizeof(T))),
        device_(backend.allocate(size * sizeof(T))) {}

  T* host() const { return static_cast<T*>(host_.data()); }
  T* device() const { return static_cast<T*>(device_.data()); }

  // Sends elements [begin, begin + count). They stay as they are until the stream has got there.
  void upload(int64_t begin, int64_t count, Stream& stream) { send(begin, begin, count, stream); }
  // The same, to the front of the backend's array: whatever is enqueued behind it finds it there.
  void upload_to_front(int64_t begin, int64_t count, Stream& stream) {
    send(0, begin, count, stream);
  }

 private:
  void send(int64_t to, int64_t from, int64_t count, Stream& stream) {
    const auto bytes = static_cast<int64_t>(count * sizeof(T));
    if (bytes == 0) return;
    backend_.copy_from_host(TensorView(device() + to, DType::u8, {bytes}), host() + from, stream);
  }

  Backend& backend_;
  Buffer host_, device_;
};

}  // namespace outrider
