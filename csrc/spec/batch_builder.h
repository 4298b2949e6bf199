// BatchBuilder: gathers the rows of a ragged pass on the host and hands them to the backend.
// Several passes of a step may be in flight at once; on the backend all of them have the same
// place, so that what is replayed is no pass's own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

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
        copies_(backend, max_rows_, num_passes * max_rows_) {
    segments_.reserve(max_rows);
    places_.reserve(max_rows);
    moved_.reserve(max_rows);
    segment_ends_.reserve(max_rows);
  }

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

  // segment: Batch says what it decides. Rows with logits keep their order, whichever they are in.
  void add(int64_t slot, int32_t token, int64_t position, bool wants_logits, int segment = 0) {
    add(slot, position, wants_logits, token, nullptr, segment);
  }
  // A row whose token the device alone knows, at `token` on the backend.
  void add(int64_t slot, const int32_t* token, int64_t position, bool wants_logits,
           int segment = 0) {
    add(slot, position, wants_logits, 0, token, segment);
  }

  bool segmented() const { return num_segments_ > 1; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_logit_rows() const { return num_logit_rows_; }
  bool full() const { return num_rows_ == max_rows_; }
  // That no row's position reaches (Backend::padded_context): part of what a replayed pass is.
  int64_t context() const { return backend_.padded_context(num_rows_, context_); }

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
    CHECK(!uploaded_);
    uploaded_ = true;
    if (segmented()) sort_by_segment();
    columns_.upload_to_front(pass_ * kColumns * max_rows_, kColumns * max_rows_, stream);
    copies_.upload_to_front(pass_ * max_rows_, num_rows_, stream);
  }
  // Those rows, on the backend, with every token in its place.
  Batch batch(Stream& stream) {
    backend_.copy_tokens(copies_.device(), num_rows_, stream);
    return {column(0, num_rows_),       column(1, num_rows_), column(2, num_rows_),
            column(3, num_logit_rows_), segment_ends_,        context()};
  }

 private:
  static constexpr int64_t kColumns = 4;  // tokens, positions, slots, rows with logits

  void add(int64_t slot, int64_t position, bool wants_logits, int32_t token, const int32_t* from,
           int segment) {
    CHECK(num_rows_ < max_rows_);
    if (wants_logits) host(3)[num_logit_rows_++] = static_cast<int32_t>(num_rows_);
    host(0)[num_rows_] = token;
    host(1)[num_rows_] = static_cast<int32_t>(position);
    host(2)[num_rows_] = static_cast<int32_t>(slot);
    copies_.host()[pass_ * max_rows_ + num_rows_] = {from, device(0) + num_rows_};
    context_ = std::max(context_, position + 1);
    segments_.push_back(segment);
    num_segments_ = std::max(num_segments_, segment + 1);
    ++num_rows_;
  }
  // Moves the rows of each segment together.
  void sort_by_segment() {
    places_.resize(num_rows_);
    int32_t place = 0;
    for (int segment = 0; segment < num_segments_; ++segment) {
      const int32_t begin = place;
      for (int64_t r = 0; r < num_rows_; ++r) {
        if (segments_[r] == segment) places_[r] = place++;
      }
      if (place > begin) segment_ends_.push_back(place);
    }
    for (int64_t c = 0; c < 3; ++c) {
      moved_.assign(host(c), host(c) + num_rows_);
      for (int64_t r = 0; r < num_rows_; ++r) host(c)[places_[r]] = moved_[r];
    }
    for (int64_t i = 0; i < num_logit_rows_; ++i) host(3)[i] = places_[host(3)[i]];
    for (int64_t r = 0; r < num_rows_; ++r) {
      copies_.host()[pass_ * max_rows_ + r].to = device(0) + places_[r];
    }
  }
  void clear() {
    num_rows_ = num_logit_rows_ = context_ = 0;
    num_segments_ = 1;
    segments_.clear();
    segment_ends_.clear();
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
  int64_t context_ = 0;  // positions that the longest row sees
  bool uploaded_ = false;
  int num_segments_ = 1;
  std::vector<int32_t> segments_;        // [num_rows]
  std::vector<int64_t> segment_ends_;    // empty: there is one
  std::vector<int32_t> places_, moved_;  // [num_rows]: of sort_by_segment
};

}  // namespace outrider
