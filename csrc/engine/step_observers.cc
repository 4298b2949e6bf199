// See step_observers.h.
#include "engine/step_observers.h"

#include "engine/metrics.h"

namespace outrider {

void StepObservers::observe(const StepRecord& record) const {
  if (each_step) each_step(record);
  const StepPhases& times = record.times;
  if (metrics != nullptr) {
    const std::chrono::duration<double> all = record.end - record.begin;
    metrics->step_phase(StepPhase::draft, times.draft);
    metrics->step_phase(StepPhase::target, times.target);
    metrics->step_phase(StepPhase::verify, times.verify);
    metrics->step_phase(StepPhase::exchange, times.exchange);
    metrics->step_phase(StepPhase::host,
                        all.count() - times.draft - times.target - times.verify - times.exchange);
  }
  if (trace != nullptr) trace->step(record);
}

}  // namespace outrider
