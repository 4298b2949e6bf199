#include "model/weight_reader.h"

#include <algorithm>

#include "core/error.h"
#include "model/json_file.h"

namespace outrider {

void TensorChecker::expect(const std::string& name, std::initializer_list<int64_t> shape,
                           const char* source) {
  const StoredTensor* tensor = checkpoint_.find(name);
  const std::string where = checkpoint_.path_of(name) + ": tensor " + name;
  if (tensor == nullptr) {
    throw Error(where + " is missing; expected as config.json (" + needed_by_ + ") says");
  }
  if (tensor->dtype != "BF16") {
    throw Error(where + " has dtype " + tensor->dtype +
                "; expected BF16 (another would change the numbers)");
  }
  const std::vector<int64_t> expected = shape;
  if (tensor->shape != expected) {
    throw Error(where + " has shape " + show_shape(tensor->shape) + "; expected " +
                show_shape(expected) + " as config.json (" + source + ") says");
  }
  known_.insert(name);
}

void TensorChecker::finish() const {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (!known_.contains(name) && !name.ends_with(".rotary_emb.inv_freq")) {
      throw Error(checkpoint_.path_of(name) + ": tensor " + quote(name) +
                  " is not of the model that config.json describes; expected no such tensor");
    }
  }
}

Buffer upload_tokens(const std::vector<int32_t>& tokens, Backend& backend) {
  Buffer buffer = backend.allocate(tokens.size() * sizeof(int32_t));
  Stream stream = backend.make_stream();
  backend.copy_from_host(buffer.view(DType::i32, {static_cast<int64_t>(tokens.size())}),
                         tokens.data(), stream);
  backend.synchronize(stream);
  return buffer;
}

TensorView WeightReader::view(const std::string& name) const {
  const StoredTensor& tensor = *checkpoint_.find(name);
  void* data = const_cast<void*>(tensor.data);
  return tensor.shape.size() == 1
             ? TensorView(data, DType::bf16, {tensor.shape[0]})
             : TensorView(data, DType::bf16, {tensor.shape[0], tensor.shape[1]});
}

PackedWeight WeightReader::pack_transposed(std::initializer_list<TensorView> parts) const {
  constexpr int64_t kBlock = 32;  // columns at a time: neighbours in the file are one cache line
  const int64_t k = parts.begin()->extent(0);
  int64_t n = 0;
  for (const TensorView& part : parts) n += part.extent(1);
  std::vector<bf16> transposed(n * k);
  bf16* to = transposed.data();
  for (const TensorView& part : parts) {
    const bf16* const from = part.data<bf16>();
    const int64_t columns = part.extent(1);
    CHECK(part.extent(0) == k && part.stride(1) == 1);
    for (int64_t begin = 0; begin < columns; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, columns);
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t o = begin; o < end; ++o) to[o * k + i] = from[i * part.stride(0) + o];
      }
    }
    to += columns * k;
  }
  return pack({TensorView(transposed.data(), DType::bf16, {n, k})});
}

WeightVector WeightReader::norm(const std::string& name) const {
  const TensorView from = view(name);
  return upload(from.raw(), DType::bf16, from.size());
}

WeightVector WeightReader::bias(std::initializer_list<TensorView> parts) const {
  std::vector<float> values;
  for (const TensorView& part : parts) {
    const bf16* from = part.data<bf16>();
    for (int64_t i = 0; i < part.size(); ++i) values.push_back(to_float(from[i]));
  }
  return upload(values.data(), DType::f32, static_cast<int64_t>(values.size()));
}

WeightVector WeightReader::upload(const void* from, DType dtype, int64_t n) const {
  WeightVector vector;
  vector.data = backend_.allocate(n * dtype_bytes(dtype));
  vector.view = vector.data.view(dtype, {n});
  Stream stream = backend_.make_stream();
  backend_.copy_from_host(vector.view, from, stream);
  backend_.synchronize(stream);  // `from` may end with the caller
  return vector;
}

}  // namespace outrider
