// RequestSettings: how a request's answers are drawn and drafted, with what it leaves open chosen.
#pragma once

#include <cstdint>

#include "engine/request.h"
#include "kernels/verify_types.h"
#include "spec/logit_editor.h"
#include "spec/lookahead.h"

namespace outrider {

struct RequestSettings {
  Processors processors;
  LogitRules rules;
  SpeculationMode mode = SpeculationMode::off;
  DrafterKind drafter = DrafterKind::none;
  int32_t lookahead = 0;  // K, or the most that a step may draft
  bool lookahead_is_exact = false;
  int32_t alternatives = 0;  // to the first of K: as many, or the most
  double tpot_slo_ms = 0;    // that a step shall take at most; 0: whatever
  uint64_t seed = 0;         // the request's, or drawn here
  int64_t max_tokens = 0;    // of each answer
};

// request: validated against `limits`. lookahead, tpot_slo_ms: the server's, where it gives none.
RequestSettings settle(const Request& request, const Limits& limits,
                       const LookaheadPolicy& lookahead, double tpot_slo_ms);

// 64 random bits.
uint64_t draw_seed();

}  // namespace outrider
