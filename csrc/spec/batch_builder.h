// BatchBuilder: gathers the rows of a ragged pass on the host and hands them to the backend.
// Several passes of a step may be in flight at once; on the backend all of them have the same
// place, so that what is replayed is no pass's own.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "model/transformer.h"
#include "spec/staged.h"

namespace outrider {

class BatchBuilder {
 public:
  // max_rows: of a pass; num_passes: that may be in flight.
  BatchBuilder(Backend& backend, int64_t max_rows, int64_t num_passes = 1)
      : backend_(backend),
        max_rows_(max_rows),
        num_passes_(num_passes),
        columns_(backend, kColumns * max_rows_, num_passes * kColumns * max_rows_),
        copies_(backend, max_rows_, num_passes * max_rows_) {}

  // Nothing is in flight: the step before is done.
  void begin_step() {
    pass_ = 0;
    clear();
  }
  // Goes on to the next pass, if this one was uploaded.
  void begin_pass(Stream& stream) {
    if (!uploaded_) return;
    clear();
    if (++pass_ < num_passes_) return;
    backend_.synchronize(stream);
    pass_ = 0;
  }

  void add(int64_t slot, int32_t token, int64_t position, bool wants_logits) {
    add(slot, position, wants_logits, token, nullptr);
  }
  // A row whose token the device alone knows, at `token` on the backend.
  void add(int64_t slot, const int32_t* token, int64_t position, bool wants_logits) {
    add(slot, position, wants_logits, 0, token);
  }

  int64_t num_rows() const { return num_rows_; }
  int64_t num_logit_rows() const { return num_logit_rows_; }
  bool full() const { return num_rows_ == max_rows_; }

  // Adds rows that nobody reads, until rows and rows with logits are as many as a replayed pass
  // has. False where a pass cannot have so many: then nothing is added.
  bool pad() {
    const int64_t more_logits = backend_.padded_rows(num_logit_rows_) - num_logit_rows_;
    const int64_t rows = backend_.padded_rows(num_rows_ + more_logits);
    if (rows > max_rows_) return false;
    for (int64_t i = 0; num_rows_ < rows; ++i) add(0, 0, -1, i < more_logits);
    return true;
  }

  // Sends the rows so far to the backend.
  void upload(Stream& stream) {
    uploaded_ = true;
    columns_.upload_to_front(pass_ * kColumns * max_rows_, kColumns * max_rows_, stream);
    copies_.upload_to_front(pass_ * max_rows_, num_rows_, stream);
  }
  // Those rows, on the backend, with every token in its place.
  Batch batch(Stream& stream) {
    backend_.copy_tokens(copies_.device(), num_rows_, stream);
    return {column(0, num_rows_), column(1, num_rows_), column(2, num_rows_),
            column(3, num_logit_rows_)};
  }

 private:
  static constexpr int64_t kColumns = 4;  // tokens, positions, slots, rows with logits

  void add(int64_t slot, int64_t position, bool wants_logits, int32_t token, const int32_t* from) {
    CHECK(num_rows_ < max_rows_);
    if (wants_logits) host(3)[num_logit_rows_++] = static_cast<int32_t>(num_rows_);
    host(0)[num_rows_] = token;
    host(1)[num_rows_] = static_cast<int32_t>(position);
    host(2)[num_rows_] = static_cast<int32_t>(slot);
    copies_.host()[pass_ * max_rows_ + num_rows_] = {from, device(0) + num_rows_};
    ++num_rows_;
  }
  void clear() {
    num_rows_ = num_logit_rows_ = 0;
    uploaded_ = false;
  }
  int32_t* host(int64_t index) { return columns_.host() + (pass_ * kColumns + index) * max_rows_; }
  int32_t* device(int64_t index) { return columns_.device() + index * max_rows_; }
  TensorView column(int64_t index, int64_t n) { return {device(index), DType::i32, {n}}; }

  Backend& backend_;
  int64_t max_rows_, num_passes_;
  Staged<int32_t> columns_;   // [kColumns, max_rows]; on the host of each pass
  Staged<TokenCopy> copies_;  // [max_rows]; likewise
  int64_t pass_ = 0;          // which of a step's is being gathered
  int64_t num_rows_ = 0, num_logit_rows_ = 0;
  bool uploaded_ = false;
};

}  // namespace outrider
