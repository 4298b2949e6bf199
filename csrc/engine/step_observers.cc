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
    metrics->set_kv_cache_usage(record.kv_cache_usage);
  }
  if (trace != nullptr) {
    auto from = record.executed;
    const auto span = [&](const char* name, double seconds) {
      const auto to = from + std::chrono::duration_cast<EngineClock::duration>(
                                 std::chrono::duration<double>(seconds));
      trace->phase(name, record.step, from, to);
      from = to;
    };
    trace->phase("plan", record.step, record.begin, record.executed);
    span("draft", times.draft);
    span("target", times.target);
    span("verify", times.verify + times.exchange);
    trace->phase("apply", record.step, from, record.end);
  }
}

}  // namespace outrider
