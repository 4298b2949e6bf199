#include "engine/step_pricing.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace outrider {

namespace {

// A row costs something, whatever a noisy table says: of a step of one row.
constexpr double kLeastRow = 0.005;

}  // namespace

Drawing drawing_of(const Processors& processors) {
  if (processors.mode == VerifyMode::greedy) return Drawing::greedy;
  return processors.filtered() ? Drawing::filtered : Drawing::sampled;
}

void DecodeShape::add(const StepCosts& target, int64_t position, DrafterKind drafter,
                      Drawing drawing, const DraftedRows& rows) {
  const auto d = static_cast<int>(drafter);
  ++sequences;
  drafted_rows += rows.target_rows();
  most_alternatives = std::max<int64_t>(most_alternatives, rows.num_alternatives);
  const double plain_ms = target.context_ms(1, position);
  context_ms += plain_ms;
  drafted_context_ms += target.context_ms(1 + rows.target_rows(), position) - plain_ms;
  segment_context_ms[d] += target.segment_context_ms(rows.num_alternatives, position);
  for (int i = 0; i < rows.num_drafted; ++i) ++drafting[d][i];
  drawn[d][static_cast<int>(drawing)] += rows.num_drafted + rows.num_alternatives;
  drawn_again[d] += rows.num_alternatives;
  if (rows.num_drafted > 0) missed[d] += rows.num_missed;
}

int StepPricing::size_of(int64_t sequences) {
  const auto others = static_cast<uint64_t>(std::max<int64_t>(sequences, 1) - 1);
  return std::min(static_cast<int>(std::bit_width(others)), kSizes - 1);
}

const CostFit& StepPricing::fit(int64_t sequences) const {
  const CostFit& own = fits_[size_of(sequences)];
  return own.num_observed() > 0 ? own : fits_[latest_];
}

double StepPricing::plain_table_ms(const DecodeShape& shape) const {
  if (shape.sequences == 0) return shape.prompt_rows == 0 ? 0 : target().rows_ms(shape.prompt_rows);
  double ms = target().decode_ms(shape.sequences) + shape.context_ms;
  if (shape.prompt_rows > 0) ms += target().added_ms(shape.sequences, shape.prompt_rows, 0);
  return ms;
}

double StepPricing::added_table_ms(const DecodeShape& shape) const {
  if (shape.drafted_rows == 0) return 0;
  const int64_t others = shape.sequences + shape.prompt_rows;
  const double rows_ms =
      target().decode_ms(others + shape.drafted_rows) - target().decode_ms(others);
  const double least = kLeastRow * target().rows_ms(1) * static_cast<double>(shape.drafted_rows);
  return std::max(rows_ms, least) + shape.drafted_context_ms +
         target().alternatives_ms(shape.most_alternatives) +
         std::accumulate(shape.segment_context_ms.begin(), shape.segment_context_ms.end(), 0.0);
}

double StepPricing::step_ms(const DecodeShape& shape) const {
  const CostFit& fit = this->fit(shape.sequences);
  // Steps with prompts correct nothing, and their rows are on another slope of the table.
  if (shape.prompt_rows > 0) {
    return fit.plain_factor() * (plain_table_ms(shape) + added_table_ms(shape));
  }
  return (fit.plain_factor() + fit.share(shape.drafted_rows)) * plain_table_ms(shape) +
         fit.added_factor() * added_table_ms(shape);
}

double StepPricing::round_ms(DrafterKind kind, int64_t rows) const {
  if (rows == 0 || drafts_free(kind)) return 0;
  return draft_fits_[static_cast<int>(kind)].plain_factor() * table(kind).rows_ms(rows);
}

double StepPricing::feed_ms(int64_t positions) const {
  if (positions == 0 || !tables_.feed.known()) return 0;
  // More than the last point has are fed by several steps.
  const StepCosts::Point& most = tables_.feed.steps.back();
  const double table_ms = positions <= most.rows
                              ? tables_.feed.rows_ms(positions)
                              : most.ms * static_cast<double>(positions) / most.rows;
  return draft_fits_[static_cast<int>(DrafterKind::model)].plain_factor() * table_ms;
}

double StepPricing::drawing_ms(DrafterKind kind, Drawing drawing) const {
  const auto d = static_cast<int>(kind);
  return draft_fits_[d].added_factor() * tables_.drawing_ms[d][static_cast<int>(drawing)];
}

double StepPricing::drawing_table_ms(const DecodeShape& shape, int drafter) const {
  double ms = shape.drawn_again[drafter] * tables_.again_ms[drafter];
  for (int i = 0; i < kNumDrawings; ++i) {
    ms += shape.drawn[drafter][i] * tables_.drawing_ms[drafter][i];
  }
  return ms;
}

double StepPricing::rounds_table_ms(const DecodeShape& shape, int drafter) const {
  const StepCosts& costs = tables_.draft[drafter];
  if (!costs.known() || shape.drafting[drafter][0] == 0) return 0;
  double ms = costs.rows_ms(shape.drafting[drafter][0] + shape.missed[drafter]);
  for (size_t i = 1; i < kMaxDraftTokens && shape.drafting[drafter][i] > 0; ++i) {
    ms += costs.rows_ms(shape.drafting[drafter][i]);
  }
  return ms;
}

double StepPricing::draft_ms(const DecodeShape& shape, DrafterKind kind) const {
  const auto d = static_cast<int>(kind);
  return draft_fits_[d].plain_factor() * rounds_table_ms(shape, d) +
         draft_fits_[d].added_factor() * drawing_table_ms(shape, d);
}

double StepPricing::draft_ms(const DecodeShape& shape) const {
  double ms = 0;
  for (int d = 0; d < kNumDrafterKinds; ++d) ms += draft_ms(shape, static_cast<DrafterKind>(d));
  return ms;
}

double StepPricing::row_context_ms(int64_t sequences, int64_t position) const {
  return fit(sequences).added_factor() * target().ms_per_row_position *
         static_cast<double>(position);
}

void StepPricing::observe(const DecodeShape& shape, double ms, double draft_ms) {
  const int size = size_of(shape.sequences);
  for (int i = 0; i < kSizes; ++i) {
    if (i != size) fits_[i].drift();
  }
  if (fits_[size].num_observed() == 0) fits_[size] = CostFit::from(fits_[latest_]);
  fits_[size].observe(plain_table_ms(shape), added_table_ms(shape), shape.drafted_rows,
                      ms - draft_ms);
  latest_ = size;
  // Where several drafted, each is taken to have had its share of the time.
  const double expected = this->draft_ms(shape);
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    const double rounds = rounds_table_ms(shape, d);
    if (rounds == 0) {
      draft_fits_[d].drift();
      continue;
    }
    const double share = this->draft_ms(shape, static_cast<DrafterKind>(d)) / expected;
    draft_fits_[d].observe(rounds, drawing_table_ms(shape, d), 0, share * draft_ms);
  }
}

}  // namespace outrider
