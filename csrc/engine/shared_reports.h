// SharedReports: drafters' reports, written by the engine's thread and read by any other, without a
// lock: numbers of one moment may stand beside those of the next.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "engine/request.h"

namespace outrider {

class SharedReports {
 public:
  using Reports = std::array<DrafterReport, kNumDrafterKinds>;

  void set(const Reports& reports) {
    for (int d = 0; d < kNumDrafterKinds; ++d) {
      const DrafterReport& from = reports[d];
      Shared& to = shared_[d];
      to.num_drafts = from.num_drafts;
      to.num_draft_tokens = from.num_draft_tokens;
      to.num_accepted_draft_tokens = from.num_accepted_draft_tokens;
      to.num_alternative_draft_tokens = from.num_alternative_draft_tokens;
      to.num_accepted_alternatives = from.num_accepted_alternatives;
      to.alpha = from.alpha;
      to.draft_cost = from.draft_cost.value_or(kUnset);
      to.predicted_speedup = from.predicted_speedup.value_or(kUnset);
      to.measured_speedup = from.measured_speedup.value_or(kUnset);
      to.budget_ms = from.budget_ms;
    }
  }

  Reports get() const {
    Reports reports;
    for (int d = 0; d < kNumDrafterKinds; ++d) {
      const Shared& from = shared_[d];
      reports[d] = {.num_drafts = from.num_drafts,
                    .num_draft_tokens = from.num_draft_tokens,
                    .num_accepted_draft_tokens = from.num_accepted_draft_tokens,
                    .num_alternative_draft_tokens = from.num_alternative_draft_tokens,
                    .num_accepted_alternatives = from.num_accepted_alternatives,
                    .alpha = from.alpha,
                    .draft_cost = told(from.draft_cost),
                    .predicted_speedup = told(from.predicted_speedup),
                    .measured_speedup = told(from.measured_speedup),
                    .budget_ms = from.budget_ms};
    }
    return reports;
  }

 private:
  static constexpr double kUnset = std::numeric_limits<double>::quiet_NaN();
  static std::optional<double> told(double number) {
    return std::isnan(number) ? std::nullopt : std::optional(number);
  }

  struct Shared {
    std::atomic<int64_t> num_drafts = 0, num_draft_tokens = 0, num_accepted_draft_tokens = 0;
    std::atomic<int64_t> num_alternative_draft_tokens = 0, num_accepted_alternatives = 0;
    std::atomic<double> alpha = 0, budget_ms = 0;
    std::atomic<double> draft_cost = kUnset, predicted_speedup = kUnset, measured_speedup = kUnset;
  };
  std::array<Shared, kNumDrafterKinds> shared_;  // by DrafterKind
};

}  // namespace outrider
