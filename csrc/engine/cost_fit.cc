#include "engine/cost_fit.h"

#include <algorithm>

namespace outrider {

namespace {

constexpr double kPlainDrift = 0.01, kAddedDrift = 0.02;  // of a factor, from step to step
constexpr double kNoise = 0.1;                            // of a step's time
constexpr double kMostSurprise = 0.3;  // of a step's time: an accident is no news
constexpr double kLeast = 0.02;        // of a factor

}  // namespace

CostFit CostFit::from(const CostFit& guess) {
  CostFit fit;
  fit.plain_ = guess.plain_;
  fit.added_ = guess.added_;
  fit.plain_variance_ = kFirstVariance * guess.plain_ * guess.plain_;
  fit.added_variance_ = kFirstVariance * std::max(1.0, guess.added_ * guess.added_);
  return fit;
}

void CostFit::drift() {
  const auto grow = [](double& variance, double drift, double square) {
    if (variance < kFirstVariance * square) variance += drift * drift * square;
  };
  grow(plain_variance_, kPlainDrift, plain_ * plain_);
  grow(added_variance_, kAddedDrift, std::max(1.0, added_ * added_));
}

void CostFit::observe(double plain_ms, double added_ms, double ms) {
  if (plain_ms <= 0 || ms <= 0) return;
  ++num_observed_;
  ++num_since_plain_;
  if (added_ms == 0) {
    ++num_plain_;
    num_since_plain_ = 0;
  }
  drift();
  const double expected = plain_ * plain_ms + added_ * added_ms;
  const double most = kMostSurprise * expected;
  const double surprise = std::clamp(ms - expected, -most, most);
  const double with_plain = plain_variance_ * plain_ms + covariance_ * added_ms;
  const double with_added = covariance_ * plain_ms + added_variance_ * added_ms;
  const double noise = kNoise * expected;
  const double variance = with_plain * plain_ms + with_added * added_ms + noise * noise;
  plain_ = std::max(plain_ + with_plain / variance * surprise, kLeast);
  added_ = std::max(added_ + with_added / variance * surprise, kLeast);
  plain_variance_ -= with_plain * with_plain / variance;
  added_variance_ -= with_added * with_added / variance;
  covariance_ -= with_plain * with_added / variance;
}

}  // namespace outrider
