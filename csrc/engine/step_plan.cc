#include "engine/step_plan.h"

#include <string>

#include "core/bytes.h"

namespace outrider {

namespace {

constexpr uint32_t kPlanVersion = 1;

}  // namespace

std::vector<uint8_t> StepPlan::serialise() const {
  ByteWriter out;
  out.put(kPlanVersion);
  out.put(step);
  out.put(released);
  out.put(static_cast<uint32_t>(admitted.size()));
  for (const Admission& a : admitted) {
    out.put(a.slot);
    out.put(a.prompt);
    out.put(a.processors);
    out.put(a.seed);
    out.put(a.drafter);
  }
  out.put(static_cast<uint32_t>(work.size()));
  for (const PlannedWork& w : work) {
    out.put(w.slot);
    out.put(w.decode);
    out.put(w.prefill_end);
    out.put(w.num_draft_tokens);
    out.put(w.proposed);
  }
  return out.bytes();
}

StepPlan StepPlan::parse(std::span<const uint8_t> bytes) {
  ByteReader in(bytes.data(), bytes.size());
  const auto version = in.get<uint32_t>();
  if (version != kPlanVersion) {
    throw Error("step plan has version " + std::to_string(version) + ", expected " +
                std::to_string(kPlanVersion));
  }
  StepPlan plan;
  plan.step = in.get<uint64_t>();
  plan.released = in.get_vector<int32_t>();
  for (auto count = in.get<uint32_t>(); count > 0; --count) {
    Admission& a = plan.admitted.emplace_back();
    a.slot = in.get<int32_t>();
    a.prompt = in.get_vector<int32_t>();
    a.processors = in.get<Processors>();
    a.seed = in.get<uint64_t>();
    a.drafter = in.get<DrafterKind>();
  }
  for (auto count = in.get<uint32_t>(); count > 0; --count) {
    PlannedWork& w = plan.work.emplace_back();
    w.slot = in.get<int32_t>();
    w.decode = in.get<int32_t>();
    w.prefill_end = in.get<int64_t>();
    w.num_draft_tokens = in.get<int32_t>();
    w.proposed = in.get_vector<int32_t>();
  }
  if (!in.done()) throw Error("step plan has bytes behind its end");
  return plan;
}

}  // namespace outrider
