#include "engine/cost_fit.h"

#include <algorithm>
#include <numeric>

namespace outrider {

namespace {

constexpr double square(double x) { return x * x; }

// From step to step: of a factor, and of a share.
constexpr double kPlainDrift = 0.01, kAddedDrift = 0.02, kShareDrift = 0.0005;
// What is not known of a factor, of itself, and of a share.
constexpr double kFactorDoubt = 0.5, kShareDoubt = 0.03;
// Of a share's mean, from step to step: as much as makes its doubt last where it drifts so.
constexpr double kShareKept = 1 - square(kShareDrift / kShareDoubt) / 2;
constexpr double kNoise = 0.1;         // of a step's time
constexpr double kMostSurprise = 0.3;  // of a step's time: an accident is no news
constexpr double kLeast = 0.02;        // of a factor

}  // namespace

CostFit::CostFit() : CostFit(1, 1) {}

CostFit::CostFit(double plain, double added) {
  mean_[kPlain] = plain;
  mean_[kAdded] = added;
  for (int i = 0; i < kStates; ++i) covariance_[i][i] = square(doubt(i).most);
}

CostFit CostFit::from(const CostFit& guess) {
  return CostFit(guess.plain_factor(), guess.added_factor());
}

CostFit::Doubt CostFit::doubt(int state) const {
  const double plain = mean_[kPlain], added = std::max(1.0, mean_[kAdded]);
  if (state == kPlain) return {kFactorDoubt * plain, kPlainDrift * plain};
  if (state == kAdded) return {kFactorDoubt * added, kAddedDrift * added};
  return {kShareDoubt * plain, kShareDrift * plain};
}

void CostFit::drift() {
  for (int i = 0; i < kStates; ++i) {
    const Doubt of = doubt(i);
    if (covariance_[i][i] < square(of.most)) covariance_[i][i] += square(of.drift);
    // What is priced too high is not taken, and would never be found out.
    if (i > kAdded) mean_[i] *= kShareKept;
  }
}

void CostFit::observe(double plain_ms, double added_ms, int64_t drafted_rows, double ms) {
  if (plain_ms <= 0 || ms <= 0) return;
  ++num_observed_;
  drift();
  std::array<double, kStates> of_ms{};  // what the time rises by with each state
  of_ms[kPlain] = plain_ms;
  of_ms[kAdded] = added_ms;
  if (drafted_rows > 0) of_ms[share_of(drafted_rows)] = plain_ms;

  const double expected = std::inner_product(mean_.begin(), mean_.end(), of_ms.begin(), 0.0);
  std::array<double, kStates> with_ms;  // covariances with the time
  for (int i = 0; i < kStates; ++i) {
    with_ms[i] = std::inner_product(of_ms.begin(), of_ms.end(), covariance_[i].begin(), 0.0);
  }
  const double variance =
      std::inner_product(with_ms.begin(), with_ms.end(), of_ms.begin(), square(kNoise * expected));
  const double most = kMostSurprise * expected;
  const double surprise = std::clamp(ms - expected, -most, most);
  for (int i = 0; i < kStates; ++i) {
    mean_[i] += with_ms[i] / variance * surprise;
    for (int j = 0; j < kStates; ++j) covariance_[i][j] -= with_ms[i] * with_ms[j] / variance;
  }
  mean_[kPlain] = std::max(mean_[kPlain], kLeast);
  mean_[kAdded] = std::max(mean_[kAdded], kLeast);
  const double most_share = mean_[kPlain] / 2;
  for (int i = kAdded + 1; i < kStates; ++i) {
    mean_[i] = std::clamp(mean_[i], -most_share, most_share);
  }
}

}  // namespace outrider
