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
        tokens_(backend, kMaxDraftTokens * max_rows),
        copies_(backend, kMaxDraftTokens * max_rows) {}

  // Sends what the round is about: `rows` of it, of which those behind the contexts are padding.
  void prepare(std::span<const DraftContext> contexts, int64_t rows, Stream& stream) {
    const int64_t round = contexts.front().num_drafted;
    CHECK(rows <= max_rows_ && round < kMaxDraftTokens);
    first_ = round * max_rows_;
    rows_ = rows;
    for (int64_t i = 0; i < rows; ++i) {
      const bool there = i < static_cast<int64_t>(contexts.size());
      tokens_.host()[first_ + i] = there ? contexts[i].tokens.back() : 0;
      copies_.host()[first_ + i] = {there && round > 0 ? contexts[i].drafted + round - 1 : nullptr,
                                    tokens_.device() + first_ + i};
    }
    tokens_.upload(first_, rows, stream);
    copies_.upload(first_, rows, stream);
  }

  // i32 [rows], every token in its place. May be part of what is replayed.
  TensorView enqueue(Stream& stream) {
    backend_.copy_tokens(copies_.device() + first_, rows_, stream);
    return TensorView(tokens_.device() + first_, DType::i32, {rows_});
  }

 private:
  Backend& backend_;
  int64_t max_rows_;
  Staged<int32_t> tokens_;    // [rounds, max_rows]
  Staged<TokenCopy> copies_;  // [rounds, max_rows]
  int64_t first_ = 0, rows_ = 0;
};

}  // namespace outrider
