// StepObservers: who hears of each step: metrics, the trace, a benchmark.
#pragma once

#include <functional>

#include "engine/step_record.h"
#include "engine/trace.h"

namespace outrider {

class EngineMetrics;

// Null for nobody. They outlive the engine.
struct StepObservers {
  EngineMetrics* metrics = nullptr;
  TraceWriter* trace = nullptr;
  std::function<void(const StepRecord&)> each_step;  // called by the engine's thread

  void observe(const StepRecord& record) const;
};

}  // namespace outrider
