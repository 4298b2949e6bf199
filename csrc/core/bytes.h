// ByteWriter, ByteReader: flat plain data to bytes and back, for messages between ranks of one
// build.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace outrider {

class ByteWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* p = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof(T));
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(static_cast<uint64_t>(values.size()));
    const auto* p = reinterpret_cast<const uint8_t*>(values.data());
    bytes_.insert(bytes_.end(), p, p + values.size() * sizeof(T));
  }
  void put(const std::string& text) { put(std::vector<char>(text.begin(), text.end())); }

  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// Throws Error where the message ends early.
class ByteReader {
 public:
  ByteReader(const uint8_t* data, size_t bytes) : data_(data), left_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    take(&value, sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> get_vector() {
    const auto count = get<uint64_t>();
    if (count > left_ / sizeof(T)) throw Error("message between ranks ends early");
    std::vector<T> values(count);
    take(values.data(), count * sizeof(T));
    return values;
  }
  std::string get_string() {
    const auto chars = get_vector<char>();
    return {chars.begin(), chars.end()};
  }
  bool done() const { return left_ == 0; }

 private:
  void take(void* out, size_t bytes) {
    if (bytes > left_) throw Error("message between ranks ends early");
    if (bytes > 0) std::memcpy(out, data_, bytes);
    data_ += bytes;
    left_ -= bytes;
  }

  const uint8_t* data_;
  size_t left_;
};

}  // namespace outrider
