#include "spec/loss_budget.h"

#include <algorithm>

#include "core/error.h"

namespace outrider {

void LossBudget::set_cost(double drafting_ms) {
  CHECK(drafting_ms > 0);
  const bool first = !has_started();
  most_ms_ = kDraftingSteps * drafting_ms;
  left_ms_ = first ? most_ms_ : std::min(left_ms_, most_ms_);
}

void LossBudget::add(double ms) {
  CHECK(has_started());
  left_ms_ = std::min(left_ms_ + ms, most_ms_);
}

}  // namespace outrider
