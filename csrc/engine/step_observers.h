// StepObservers: who hears of each step: metrics and the trace.
#pragma once

#include <cstdint>

#include "engine/delivery.h"
#include "engine/metrics.h"
#include "engine/trace.h"
#include "spec/speculative_step.h"

namespace outrider {

// A step that has been carried out.
struct StepRecord {
  uint64_t step = 0;
  EngineClock::time_point begin, executed, end;  // executed: when its plan was made and sent
  StepPhases times;
  double kv_cache_usage = 0;  // pages in use over all pages
};

// Null for nobody. They outlive the engine.
struct StepObservers {
  EngineMetrics* metrics = nullptr;
  TraceWriter* trace = nullptr;

  void observe(const StepRecord& record) const;
};

}  // namespace outrider
