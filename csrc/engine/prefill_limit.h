// How many prompt rows the streams that run can bear beside them, from what rows cost.
#pragma once

#include "engine/executor.h"
#include "engine/scheduler.h"

namespace outrider {

// Fills in prefill_rows_beside and rows_per_position.
void limit_prefill(const EngineOptions& options, const Executor::RowCosts& costs,
                   SchedulerLimits& limits);

}  // namespace outrider
