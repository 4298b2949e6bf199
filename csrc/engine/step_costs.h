// StepCosts: what a step takes, as far as its rows and their contexts tell: how many prompt rows
// the streams that run can bear beside them.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

struct StepCosts {
  struct Point {
    int64_t rows;
    double ms;
  };
  // Of one pass over so many rows of a short context, both rising; empty: nothing is known.
  std::vector<Point> steps;
  // What a long context adds, for each position before a sequence's rows: once for all of them (its
  // keys and values are read), and for each row (they are computed with).
  double ms_per_position = 0, ms_per_row_position = 0;
  // What logits of a row cost: `steps` has those of one row alone.
  double ms_per_logit_row = 0;
  // What alternatives to first drafted tokens take beside their rows, since each is in a segment of
  // the pass (Batch), as are the drafts behind the first: the first of a step for both, each
  // further one, and each segment for each position before it, which it reads again.
  double ms_of_first_alternative = 0, ms_per_alternative = 0, ms_per_segment_position = 0;

  // More rows never take less: a longer time is taken to be noise.
  void keep_rising();
  // From what passes over one row and over several take behind `position`; steps are known.
  void set_context(const Point& one, const Point& several, int64_t position);
  // From what passes take more than others of as many rows, since all rows but the first are
  // candidates for one position: two candidates, and more of them.
  void set_alternatives(const Point& few_more, const Point& more);
  // From what such passes take without a context before them, and behind `position`; set_context
  // was called.
  void set_segment_context(const Point& near, const Point& far, int64_t position);

  bool known() const { return steps.size() >= 2; }

  // Of `rows` rows of a short context: between the measured points, and beyond them.
  double rows_ms(int64_t rows) const;
  // The same, all with logits.
  double decode_ms(int64_t rows) const {
    return rows_ms(rows) + ms_per_logit_row * static_cast<double>(rows - 1);
  }
  // Of as many alternatives as the sequence with the most has.
  double alternatives_ms(int64_t most) const {
    if (most == 0) return 0;
    return ms_of_first_alternative + ms_per_alternative * static_cast<double>(most - 1);
  }
  // What the context of a sequence adds to so many alternatives and the drafts behind the first.
  double segment_context_ms(int64_t alternatives, int64_t position) const {
    if (alternatives == 0) return 0;
    return ms_per_segment_position * static_cast<double>((alternatives + 1) * position);
  }
  // What the context of a sequence adds where its `rows` rows begin at `position`.
  double context_ms(int64_t rows, int64_t position) const;
  // What such rows add to a step that has `others` rows already.
  double added_ms(int64_t others, int64_t rows, int64_t position) const;
  // The most of 0 … `most` such rows that add no more than `ms`.
  int64_t rows_within(double ms, int64_t others, int64_t position, int64_t most) const;
};

}  // namespace outrider
