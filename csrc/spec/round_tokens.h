// RoundTokens: the last token of each sequence of a drafting round, on the backend: the host knows
// those of the first round, the device alone those that it drafted since.
#pragma once

#include <cstdint>
#include <span>

#include "spec/drafter.h"
#include "spec/staged.h"

namespace outrider {

class RoundTokens {
 public:
  // max_rows: of a round, padding included.
  RoundTokens(Backend& backend, int64_t max_rows)
      : backend_(backend),
        max_rows_(max_rows),
        tokens_(backend, max_rows, kMaxDraftTokens * max_rows),
        copies_(backend, max_rows, kMaxDraftTokens * max_rows) {}

  // Sends what the round is about: `rows` of it, of which those behind the contexts are padding.
  void prepare(std::span<const DraftContext> contexts, int64_t rows, Stream& stream) {
    const int64_t round = contexts.front().num_drafted;
    CHECK(rows <= max_rows_ && round < kMaxDraftTokens);
    const int64_t first = round * max_rows_;  // on the host
    rows_ = rows;
    for (int64_t i = 0; i < rows; ++i) {
      const bool there = i < static_cast<int64_t>(contexts.size());
      tokens_.host()[first + i] = there ? contexts[i].tokens.back() : 0;
      copies_.host()[first + i] = {there && round > 0 ? contexts[i].drafted + round - 1 : nullptr,
                                   tokens_.device() + i};
    }
    tokens_.upload_to_front(first, rows, stream);
    copies_.upload_to_front(first, rows, stream);
  }

  // i32 [rows], every token in its place. May be part of what is replayed.
  TensorView enqueue(Stream& stream) {
    backend_.copy_tokens(copies_.device(), rows_, stream);
    return TensorView(tokens_.device(), DType::i32, {rows_});
  }

 private:
  Backend& backend_;
  int64_t max_rows_;
  Staged<int32_t> tokens_;    // [max_rows]; on the host of each round
  Staged<TokenCopy> copies_;  // likewise
  int64_t rows_ = 0;          // of the round that was prepared last
};

}  // namespace outrider
