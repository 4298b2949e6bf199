// One query's attention in double precision, with the roundings to bf16 that attention.h asks for,
// and how far from it fp32 may be.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/kernel_test.h"

namespace outrider {

class AttentionReference {
 public:
  // Of `context` positions: q(i) and key(t, i), i in [0, dim), rounded to bf16. `tile` neighbouring
  // positions take their weights against the largest score of theirs. A score errs by
  // `score_roundings` of Σ |q k|.
  template <typename Q, typename Key>
  AttentionReference(int64_t dim, int64_t context, int64_t tile, double score_roundings, const Q& q,
                     const Key& key)
      : weights_(context), errors_(context) {
    std::vector<double> scores(context), score_errors(context);
    for (int64_t t = 0; t < context; ++t) {
      double norm = 0.0;
      for (int64_t i = 0; i < dim; ++i) {
        const double term = q(i) * key(t, i) / std::sqrt(static_cast<double>(dim));
        scores[t] += term;
        norm += std::abs(term);
      }
      score_errors[t] = score_roundings * kRoundF32 * norm;
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    for (int64_t begin = 0; begin < context; begin += tile) {
      const int64_t end = std::min(begin + tile, context);
      const int64_t top = std::max_element(&scores[begin], &scores[0] + end) - &scores[0];
      const double of_tile = std::exp(scores[top] - most);
      for (int64_t t = begin; t < end; ++t) {
        // The scores' own errors, that of their difference, and 2^x within 3e-7.
        const double below = scores[top] - scores[t];
        const double error =
            std::expm1(score_errors[t] + score_errors[top] + 2 * (below + 1) * kRoundF32 + 3e-7);
        const double weight = std::exp(-below);
        weights_[t] = rounded(weight) * of_tile;
        // Next to a boundary between two bf16 it may have become the other.
        errors_[t] = (rounded(weight * (1 + error)) - rounded(weight * (1 - error))) * of_tile;
        sum_ += weights_[t];
      }
    }
  }

  struct Mean {
    double value;
    double tolerance;  // of one in bf16
  };
  // Of value(t). Sums over the context err by `roundings` of Σ weight |value|. Weights are divided
  // by their own sum, so an error of one moves the mean by that much of |value - mean|.
  template <typename Value>
  Mean mean(double roundings, const Value& value) const {
    const auto context = static_cast<int64_t>(weights_.size());
    double exact = 0.0, norm = 0.0, moved = 0.0;
    for (int64_t t = 0; t < context; ++t) exact += weights_[t] / sum_ * value(t);
    for (int64_t t = 0; t < context; ++t) {
      norm += weights_[t] / sum_ * std::abs(value(t));
      moved += errors_[t] / sum_ * std::abs(value(t) - exact);
    }
    const double before = moved * (1 + kRoundBf16) + roundings * kRoundF32 * norm;
    return {exact, before * (1 + kRoundBf16) + kRoundBf16 * std::abs(exact)};
  }

 private:
  static double rounded(double x) { return to_float(to_bf16(static_cast<float>(x))); }

  std::vector<double> weights_, errors_;
  double sum_ = 0.0;
};

}  // namespace outrider
