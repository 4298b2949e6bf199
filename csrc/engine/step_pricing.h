// StepPricing: what a step is expected to take: tables measured at the start, kept current by the
// steps themselves.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "engine/cost_fit.h"
#include "engine/request.h"
#include "engine/step_costs.h"
#include "kernels/verify_types.h"

namespace outrider {

// How a drafted token is drawn from its row, as far as it costs, or drafts fare otherwise.
enum class Drawing { greedy, sampled, filtered };
constexpr int kNumDrawings = 3;
Drawing drawing_of(const Processors& processors);

// Measured at the start.
struct LookaheadTables {
  StepCosts target;
  // Of a round over so many rows, drawn greedily; unknown: free.
  std::array<StepCosts, kNumDrafterKinds> draft;
  // Of feeding so many positions to the draft model's cache; unknown: free.
  StepCosts feed;
  // [drafter][drawing]: what a row takes more than a greedy one, in milliseconds.
  std::array<std::array<double, kNumDrawings>, kNumDrafterKinds> drawing_ms{};
  // [drafter]: of drawing another token from a row of which one was drawn, greedily.
  std::array<double, kNumDrafterKinds> again_ms{};
};

// What a decoding sequence has beside the row of its last token.
struct DraftedRows {
  int num_drafted = 0;  // K
  int num_alternatives = 0;
  int64_t num_refed = 0;   // positions whose place in the cache held a refused draft
  int64_t num_missed = 0;  // before its last token, that its drafter's first round feeds

  int64_t target_rows() const { return num_drafted + num_alternatives + num_refed; }
};

// The decode rows of a step, and how many rows of prompts it has beside them.
struct DecodeShape {
  int64_t sequences = 0;
  int64_t drafted_rows = 0;       // alternatives and what is fed again are some of them
  int64_t most_alternatives = 0;  // of a sequence
  int64_t prompt_rows = 0;
  // That the table has for the sequences' contexts, and for those of the drafted rows.
  double context_ms = 0, drafted_context_ms = 0;
  // [drafter][i]: sequences that draft at least i + 1 tokens.
  std::array<std::array<int, kMaxDraftTokens>, kNumDrafterKinds> drafting{};
  std::array<std::array<int, kNumDrawings>, kNumDrafterKinds> drawn{};  // tokens, by drawing
  std::array<int, kNumDrafterKinds> drawn_again{};                      // of them, alternatives
  // [drafter]: that the table has for the contexts of their segments.
  std::array<double, kNumDrafterKinds> segment_context_ms{};
  // [drafter]: positions that first rounds feed beside each sequence's last.
  std::array<int64_t, kNumDrafterKinds> missed{};

  void add(const StepCosts& target, int64_t position, DrafterKind drafter, Drawing drawing,
           const DraftedRows& rows);
};

class StepPricing {
 public:
  // Tiles of rows, caches and the host's own work make steps of few sequences unlike those of many:
  // 1, 2, 3 to 4, 5 to 8 … 33 to 64, and more have factors of their own.
  static constexpr int kSizes = 8;
  static int size_of(int64_t sequences);

  explicit StepPricing(LookaheadTables tables) : tables_(std::move(tables)) {}

  const StepCosts& target() const { return tables_.target; }
  bool known() const { return tables_.target.known(); }
  bool drafts_free(DrafterKind kind) const { return !table(kind).known(); }

  // Milliseconds; all of a step but its drafting.
  double step_ms(const DecodeShape& shape) const;
  double round_ms(DrafterKind kind, int64_t rows) const;       // of rows drawn greedily
  double drawing_ms(DrafterKind kind, Drawing drawing) const;  // that a row takes more
  double feed_ms(int64_t positions) const;                     // of the draft model's cache
  // All rounds of a drafter, and of all of them.
  double draft_ms(const DecodeShape& shape, DrafterKind kind) const;
  double draft_ms(const DecodeShape& shape) const;
  // What alternatives take beside their rows, in a step of so many sequences: StepCosts. And for
  // each position before a segment, of a step of so many sequences.
  double alternatives_ms(int64_t sequences, int64_t most) const {
    return fit(sequences).added_factor() * target().alternatives_ms(most);
  }
  double segment_context_ms(int64_t sequences, int64_t position) const {
    return fit(sequences).added_factor() * target().ms_per_segment_position *
           static_cast<double>(position);
  }
  double segment_context_ms(const DecodeShape& shape, DrafterKind kind) const {
    return fit(shape.sequences).added_factor() * shape.segment_context_ms[static_cast<int>(kind)];
  }
  // Of drawing one.
  double again_ms(DrafterKind kind) const {
    const auto d = static_cast<int>(kind);
    return draft_fits_[d].added_factor() * tables_.again_ms[d];
  }
  // What a drafted row of a sequence takes for the context before it, in a step of so many.
  double row_context_ms(int64_t sequences, int64_t position) const;

  // A step that only decoded was carried out.
  void observe(const DecodeShape& shape, double ms, double draft_ms);
  // What is known of steps of alike many sequences.
  const CostFit& fit(int64_t sequences) const;

 private:
  const StepCosts& table(DrafterKind kind) const { return tables_.draft[static_cast<int>(kind)]; }
  double plain_table_ms(const DecodeShape& shape) const;
  double added_table_ms(const DecodeShape& shape) const;
  double drawing_table_ms(const DecodeShape& shape, int drafter) const;
  double rounds_table_ms(const DecodeShape& shape, int drafter) const;

  LookaheadTables tables_;
  std::array<CostFit, kSizes> fits_;
  int latest_ = 0;                                    // of them, the one last observed
  std::array<CostFit, kNumDrafterKinds> draft_fits_;  // added: what drawing takes
};

}  // namespace outrider
