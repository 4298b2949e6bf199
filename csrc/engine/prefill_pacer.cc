#include "engine/prefill_pacer.h"

#include <algorithm>

namespace outrider {

namespace {

// Of what a step was beside its mark: so that some fifty steps, less than a second, find the pace,
// and the noise of one is not followed.
constexpr double kGain = 0.03;
constexpr double kMostSurprise = 1;  // in plain steps: an accident is no news
constexpr double kSlowest = 0.05, kFastest = 2;

}  // namespace

void PrefillPacer::observe(double plain_ms, double ms) {
  if (plain_ms <= 0 || ms <= 0) return;
  const double room = std::clamp(slowdown_ - ms / plain_ms, -kMostSurprise, kMostSurprise);
  pace_ = std::clamp(pace_ + kGain * room, kSlowest, kFastest);
}

}  // namespace outrider
