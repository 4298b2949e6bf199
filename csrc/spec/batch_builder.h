// BatchBuilder: gathers the rows of one ragged pass on the host and hands them to the backend.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "model/transformer.h"

namespace outrider {

class BatchBuilder {
 public:
  BatchBuilder(Backend& backend, int64_t max_rows)
      : backend_(backend),
        max_rows_(max_rows),
        device_(backend.allocate(static_cast<size_t>(4 * max_rows) * sizeof(int32_t))) {
    for (auto* column : {&tokens_, &positions_, &slots_, &logit_rows_}) column->reserve(max_rows);
  }

  void add(int64_t slot, int32_t token, int64_t position, bool wants_logits) {
    CHECK(num_rows() < max_rows_);
    if (wants_logits) logit_rows_.push_back(static_cast<int32_t>(num_rows()));
    tokens_.push_back(token);
    positions_.push_back(static_cast<int32_t>(position));
    slots_.push_back(static_cast<int32_t>(slot));
  }

  int64_t num_rows() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t num_logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }
  bool full() const { return num_rows() == max_rows_; }

  // The rows so far, on the backend; valid until the next upload.
  Batch upload(Stream& stream) {
    return {column(0, tokens_, stream), column(1, positions_, stream), column(2, slots_, stream),
            column(3, logit_rows_, stream)};
  }

  void clear() {
    for (auto* column : {&tokens_, &positions_, &slots_, &logit_rows_}) column->clear();
  }

 private:
  TensorView column(int index, const std::vector<int32_t>& values, Stream& stream) {
    const TensorView view = device_.view(DType::i32, {static_cast<int64_t>(values.size())},
                                         static_cast<size_t>(index * max_rows_) * sizeof(int32_t));
    backend_.copy_from_host(view, values.data(), stream);
    return view;
  }

  Backend& backend_;
  int64_t max_rows_;
  Buffer device_;  // i32 [4, max_rows]
  std::vector<int32_t> tokens_, positions_, slots_, logit_rows_;
};

}  // namespace outrider
