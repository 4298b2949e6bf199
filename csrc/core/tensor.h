// TensorView: a typed, strided window on memory that somebody else owns. Passed by value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/bf16.h"
#include "core/error.h"

namespace outrider {

enum class DType : uint8_t { f32, f64, bf16, i32, u8 };

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
      return 8;
    case DType::bf16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

class TensorView {
 public:
  static constexpr int kMaxRank = 4;

  TensorView() = default;

  // Row-major and contiguous.
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> extents)
      : data_(data), dtype_(dtype), rank_(static_cast<int>(extents.size())) {
    CHECK(rank_ <= kMaxRank);
    int d = 0;
    for (int64_t extent : extents) extents_[d++] = extent;
    int64_t stride = 1;
    for (d = rank_ - 1; d >= 0; --d) {
      strides_[d] = stride;
      stride *= extents_[d];
    }
  }

  template <typename T>
  T* data() const {
    CHECK(dtype_of<T>() == dtype_);
    return static_cast<T*>(data_);
  }
  void* raw() const { return data_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t extent(int d) const { return extents_[d]; }
  int64_t stride(int d) const { return strides_[d]; }  // in elements
  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < rank_; ++d) n *= extents_[d];
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(size()) * dtype_bytes(dtype_); }

  bool contiguous() const {
    int64_t stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      if (extents_[d] != 1 && strides_[d] != stride) return false;
      stride *= extents_[d];
    }
    return true;
  }

  // Elements [begin, end) of dimension d; strides stay.
  TensorView slice(int d, int64_t begin, int64_t end) const {
    CHECK(d < rank_ && 0 <= begin && begin <= end && end <= extents_[d]);
    TensorView view = *this;
    view.data_ = static_cast<std::byte*>(data_) + begin * strides_[d] * dtype_bytes(dtype_);
    view.extents_[d] = end - begin;
    return view;
  }
  TensorView rows(int64_t begin, int64_t end) const { return slice(0, begin, end); }

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> extents_{};
  std::array<int64_t, kMaxRank> strides_{};
};

}  // namespace outrider
