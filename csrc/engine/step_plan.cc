#include "engine/step_plan.h"

#include <string>

#include "core/bytes.h"

namespace outrider {

namespace {

constexpr uint32_t kPlanVersion = 4;

void put(ByteWriter& out, const LogitRules& r) {
  out.put(r.repetition_penalty);
  out.put(r.frequency_penalty);
  out.put(r.presence_penalty);
  out.put(r.min_tokens);
  out.put(r.listed);
}

void get(ByteReader& in, LogitRules& r) {
  r.repetition_penalty = in.get<float>();
  r.frequency_penalty = in.get<float>();
  r.presence_penalty = in.get<float>();
  r.min_tokens = in.get<int32_t>();
  r.listed = in.get_vector<ListedToken>();
}

void put(ByteWriter& out, const Admission& a) {
  out.put(a.slot);
  out.put(a.choice);
  out.put(a.tokens);
  out.put(a.num_prompt_tokens);
  put(out, a.rules);
  out.put(a.processors);
  out.put(a.seed);
  out.put(a.drafter);
  out.put(a.num_cached);
  out.put(a.num_draft_cached);
  out.put(a.top_logprobs);
  out.put(a.top_prompt_logprobs);
}

void get(ByteReader& in, Admission& a) {
  a.slot = in.get<int32_t>();
  a.choice = in.get<int32_t>();
  a.tokens = in.get_vector<int32_t>();
  a.num_prompt_tokens = in.get<int64_t>();
  get(in, a.rules);
  a.processors = in.get<Processors>();
  a.seed = in.get<uint64_t>();
  a.drafter = in.get<DrafterKind>();
  a.num_cached = in.get<int64_t>();
  a.num_draft_cached = in.get<int64_t>();
  a.top_logprobs = in.get<int32_t>();
  a.top_prompt_logprobs = in.get<int32_t>();
}

void put(ByteWriter& out, const PageGrant& g) {
  out.put(g.slot);
  out.put(g.first);
  out.put(g.pages);
}

void get(ByteReader& in, PageGrant& g) {
  g.slot = in.get<int32_t>();
  g.first = in.get<int32_t>();
  g.pages = in.get_vector<int32_t>();
}

void put(ByteWriter& out, const PlannedWork& w) {
  out.put(w.slot);
  out.put(w.decode);
  out.put(w.prefill_end);
  out.put(w.draft_prefill_end);
  out.put(w.num_draft_tokens);
  out.put(w.num_alternatives);
  out.put(w.prompt_logits);
  out.put(w.proposed);
}

void get(ByteReader& in, PlannedWork& w) {
  w.slot = in.get<int32_t>();
  w.decode = in.get<int32_t>();
  w.prefill_end = in.get<int64_t>();
  w.draft_prefill_end = in.get<int64_t>();
  w.num_draft_tokens = in.get<int32_t>();
  w.num_alternatives = in.get<int32_t>();
  w.prompt_logits = in.get<int32_t>();
  w.proposed = in.get_vector<int32_t>();
}

template <typename T>
void put_list(ByteWriter& out, const std::vector<T>& list) {
  out.put(static_cast<uint32_t>(list.size()));
  for (const T& element : list) put(out, element);
}

template <typename T>
void get_list(ByteReader& in, std::vector<T>& list) {
  for (auto count = in.get<uint32_t>(); count > 0; --count) get(in, list.emplace_back());
}

}  // namespace

std::vector<uint8_t> StepPlan::serialise() const {
  ByteWriter out;
  out.put(kPlanVersion);
  out.put(step);
  put_list(out, admitted);
  put_list(out, target_pages);
  put_list(out, draft_pages);
  put_list(out, work);
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
  get_list(in, plan.admitted);
  get_list(in, plan.target_pages);
  get_list(in, plan.draft_pages);
  get_list(in, plan.work);
  if (!in.done()) throw Error("step plan has bytes behind its end");
  return plan;
}

}  // namespace outrider
