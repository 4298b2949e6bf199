// Buffer: move-only memory of one backend. Views are taken from it and never outlive it.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>

#include "core/tensor.h"

namespace outrider {

class Buffer {
 public:
  using Free = void (*)(void* data, size_t bytes);

  Buffer() = default;
  // Takes over `data`, to be given back by `free`.
  Buffer(void* data, size_t bytes, Free free) : data_(data), bytes_(bytes), free_(free) {}
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        free_(other.free_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr) free_(data_, bytes_);
  }

  // Leaves the memory to the caller.
  void* release() {
    bytes_ = 0;
    return std::exchange(data_, nullptr);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // A contiguous view that starts `offset_bytes` into the buffer.
  TensorView view(DType dtype, std::initializer_list<int64_t> extents,
                  size_t offset_bytes = 0) const {
    TensorView view(static_cast<std::byte*>(data_) + offset_bytes, dtype, extents);
    CHECK(offset_bytes + view.bytes() <= bytes_);
    return view;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Free free_ = nullptr;
};

constexpr size_t kHugePage = size_t{2} << 20;

// Zeroed host memory, aligned to 64 bytes (from kHugePage on to that, in huge pages where the
// system allows). Throws Error where there is none left.
Buffer allocate_host(size_t bytes);

}  // namespace outrider
