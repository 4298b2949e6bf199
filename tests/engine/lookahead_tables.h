// What tests of LookaheadPlanner let steps cost.
#pragma once

#include "engine/lookahead_planner.h"

namespace outrider {

inline constexpr auto kRandom = DrafterKind::random;
inline constexpr auto kModel = DrafterKind::model;

// A pass of one row takes 10 ms, a further row 0.2, a round 1.
inline LookaheadTables tables(double row_ms = 0.2, double round_ms = 1) {
  LookaheadTables tables;
  tables.target.steps = {{1, 10}, {101, 10 + 100 * row_ms}};
  for (const DrafterKind kind : {kRandom, kModel}) {
    tables.draft[static_cast<int>(kind)].steps = {{1, round_ms}, {101, round_ms + 1}};
  }
  tables.feed = tables.draft[static_cast<int>(kModel)];
  return tables;
}

inline LookaheadPolicy adaptive() { return {}; }

}  // namespace outrider
