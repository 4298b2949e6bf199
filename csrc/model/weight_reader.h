// Tensors of a checkpoint on their way to a backend: checked against what a config describes, then
// taken out slice by slice.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/safetensors.h"
#include "model/shard.h"

namespace outrider {

constexpr char kLmHeadTensor[] = "lm_head.weight";

// A norm's weight or bias (bf16), or another bias (f32), [n], on the backend; empty where there is
// none.
struct WeightVector {
  Buffer data;
  TensorView view;
};

// Checks tensors off against what a config describes.
class TensorChecker {
 public:
  // needed_by: see below.
  TensorChecker(const Checkpoint& checkpoint, std::string needed_by)
      : checkpoint_(checkpoint), needed_by_(std::move(needed_by)) {}

  // What in config.json asks for the tensors that are expected next, for the message where one is
  // missing.
  void needed_by(std::string field) { needed_by_ = std::move(field); }
  // source: the fields of config.json that the shape comes from, for the message. Throws Error
  // where there is no such bf16 tensor.
  void expect(const std::string& name, std::initializer_list<int64_t> shape, const char* source);
  void ignore(const std::string& name) { known_.insert(name); }
  // Throws Error for a tensor that nothing has asked for.
  void finish() const;

 private:
  const Checkpoint& checkpoint_;
  std::string needed_by_;
  std::set<std::string, std::less<>> known_;
};

// i32 [tokens] on the backend.
Buffer upload_tokens(const std::vector<int32_t>& tokens, Backend& backend);

// Takes slices out of a checkpoint whose tensors have been checked.
class WeightReader {
 public:
  // format: of what it packs.
  WeightReader(const Checkpoint& checkpoint, Backend& backend,
               WeightFormat format = WeightFormat::bf16)
      : checkpoint_(checkpoint), backend_(backend), format_(format) {}

  // The tensor where it lies in the file: read-only, whatever TensorView allows.
  TensorView view(const std::string& name) const;
  TensorView rows(const std::string& name, Range range) const {
    return view(name).rows(range.begin, range.end);
  }
  TensorView columns(const std::string& name, Range range) const {
    return view(name).slice(1, range.begin, range.end);
  }
  PackedWeight pack(std::initializer_list<TensorView> parts) const {
    return backend_.pack(std::span(parts.begin(), parts.size()), format_);
  }
  PackedWeight pack_gate_up(std::initializer_list<TensorView> parts) const {
    return backend_.pack_gate_up(std::span(parts.begin(), parts.size()), format_);
  }
  // The parts, [k, n_i] (inputs by outputs, as Conv1D keeps them), transposed and stacked.
  PackedWeight pack_transposed(std::initializer_list<TensorView> parts) const;
  WeightVector norm(const std::string& name) const;
  // The parts end to end, in fp32.
  WeightVector bias(std::initializer_list<TensorView> parts) const;

 private:
  WeightVector upload(const void* from, DType dtype, int64_t n) const;

  const Checkpoint& checkpoint_;
  Backend& backend_;
  WeightFormat format_;
};

}  // namespace outrider
