// The marks (Backend::mark) between which a step's times are taken.
#pragma once

namespace outrider {

enum StepMark : int {
  kStepBegin,
  kDrafted,
  kTargetBegin,
  kTargetEnd,
  kExchangeABegin,
  kExchangeAEnd,
  kExchangeBBegin,
  kExchangeBEnd,
  kResolveBegin,
  kResolveEnd,
  kVerified,
};

}  // namespace outrider
