// StepObservers: who hears of each step: metrics, the trace, a benchmark.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/delivery.h"
#include "engine/trace.h"
#include "spec/speculative_step.h"

namespace outrider {

class EngineMetrics;

// A step that has been carried out.
struct StepRecord {
  uint64_t step = 0;
  EngineClock::time_point begin, executed, end;  // executed: when its plan was made and sent
  StepPhases times;
  int64_t num_decoding = 0;   // sequences that decoded …
  int64_t num_drafted = 0;    // … after so many drafted tokens …
  int64_t num_tokens = 0;     // … and got so many
  double kv_cache_usage = 0;  // pages in use over all pages
};

// Null for nobody. They outlive the engine.
struct StepObservers {
  EngineMetrics* metrics = nullptr;
  TraceWriter* trace = nullptr;
  std::function<void(const StepRecord&)> each_step;  // called by the engine's thread

  void observe(const StepRecord& record) const;
};

}  // namespace outrider
