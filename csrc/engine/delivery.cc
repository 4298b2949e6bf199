#include "engine/delivery.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace outrider {

namespace {

double ms_between(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// Of the token at `index` of a step.
TokenOrigin origin_of(const Delivered& item, int index) {
  const VerifiedDrafts& drafts = item.drafts;
  if (drafts.num_drafted == 0) return TokenOrigin::plain;
  if (index < drafts.num_kept()) return TokenOrigin::drafted;
  return drafts.num_kept() < drafts.num_drafted && drafts.alternative < 0 ? TokenOrigin::corrected
                                                                          : TokenOrigin::bonus;
}

}  // namespace

Delivery::Delivery() : thread_([this] { run(); }) {}

Delivery::~Delivery() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Delivery::push(std::vector<Delivered>& items) {
  if (items.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    std::move(items.begin(), items.end(), std::back_inserter(queue_));
  }
  items.clear();
  wake_.notify_one();
}

void Delivery::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void Delivery::run() {
  std::vector<Delivered> items;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    items.swap(queue_);
    busy_ = true;
    lock.unlock();
    for (Delivered& item : items) deliver(item);
    items.clear();
    lock.lock();
    busy_ = false;
    idle_.notify_all();
  }
}

void Delivery::deliver(Delivered& item) {
  Answer& answer = *item.answer;
  RequestProgress& request = *answer.request;
  if (answer.over || request.over) return;
  if (item.error) {
    ++totals_.num_requests_failed;
    answer.over = request.over = true;
    request.sink->on_error(*std::move(item.error));
    return;
  }
  if (item.finished_already) return complete(answer, answer.output.finish_reason(), item.at);
  if (item.cancelled) {
    answer.output.cut();
    send(answer, {});
    return complete(answer, FinishReason::cancelled, item.at);
  }

  int num_emitted = 0;
  for (const int32_t token : item.tokens) {
    std::optional<TokenLogprobs> logprobs;
    if (!item.logprobs.empty()) logprobs = std::move(item.logprobs[num_emitted]);
    const TokenOrigin origin = origin_of(item, num_emitted);
    ++num_emitted;
    const bool last = num_emitted == static_cast<int>(item.tokens.size());
    const auto end = last ? item.end : std::nullopt;
    if (!answer.output.push(token, origin, end, std::move(logprobs))) break;
  }
  CHECK(!item.last || answer.output.finished());  // the engine makes no more
  if (num_emitted > 0) {
    if (answer.completion.completion_tokens == 0) answer.first_token = item.at;
    answer.last_token = item.at;
    count(answer, item, num_emitted);
  }
  send(answer, std::move(item.prompt_logprobs));
  if (answer.output.finished()) complete(answer, answer.output.finish_reason(), item.at);
}

void Delivery::send(Answer& answer, std::vector<TokenLogprobs> prompt_logprobs) {
  Chunk chunk = answer.output.take();
  chunk.index = answer.completion.index;
  chunk.prompt_logprobs = std::move(prompt_logprobs);
  if (chunk.token_ids.empty() && chunk.text.empty() && chunk.prompt_logprobs.empty()) return;
  if (answer.stream_stats) chunk.so_far = answer.completion;
  answer.request->sink->on_chunk(std::move(chunk));
}

void Delivery::count(Answer& answer, const Delivered& item, int num_emitted) {
  SpeculationStats& stats = answer.completion.speculation;
  const VerifiedDrafts used = item.drafts.within(num_emitted);
  ++stats.num_decode_steps;
  stats.num_decoded_tokens += num_emitted;
  if (used.num_drafted > 0) ++stats.num_spec_steps;
  stats.num_draft_tokens += used.num_verified();
  if (item.copied) stats.num_copied_draft_tokens += used.num_drafted;
  if (item.draft_cost) {
    stats.draft_cost_sum = stats.draft_cost_sum.value_or(0) + *item.draft_cost * used.num_drafted;
  }
  stats.num_accepted_draft_tokens += used.num_kept();
  stats.num_alternative_draft_tokens += used.num_alternatives;
  stats.num_accepted_alternatives += used.alternative >= 0;
  for (int i = 0; i < used.num_drafted; ++i) ++stats.drafted_per_position[i];
  for (int i = 0; i < used.num_kept(); ++i) ++stats.accepted_per_position[i];
  stats.alpha_sum += used.alpha_sum;
  stats.shift_sum += used.shift_sum;
  stats.alpha_rows += used.alpha_rows;
  stats.speedup.add(item.drafts.num_drafted, num_emitted, item.timed, item.drafts.alternative >= 0);
  answer.completion.completion_tokens += num_emitted;
  totals_.num_draft_tokens += used.num_verified();
  totals_.num_accepted_draft_tokens += used.num_kept();
  totals_.num_completion_tokens += num_emitted;
}

void Delivery::complete(Answer& answer, FinishReason reason, EngineClock::time_point at) {
  RequestProgress& request = *answer.request;
  Completion& completion = answer.completion;
  const bool any = completion.completion_tokens > 0;
  completion.finish_reason = reason;
  const int64_t gaps = completion.completion_tokens - 1;  // between tokens that were made here
  completion.completion_tokens = answer.output.num_tokens();
  completion.timings = {.queue_ms = ms_between(answer.received, answer.started),
                        .prefill_ms = ms_between(answer.started, any ? answer.first_token : at),
                        .decode_ms = any ? ms_between(answer.first_token, answer.last_token) : 0,
                        .total_ms = ms_between(answer.received, at),
                        .ttft_ms = any ? ms_between(answer.received, answer.first_token) : 0};
  SpeculationStats& stats = completion.speculation;
  stats.tpot_slo_missed =
      stats.tpot_slo_ms > 0 && gaps > 0 && completion.timings.decode_ms > stats.tpot_slo_ms * gaps;
  answer.over = true;
  completion.last = --request.choices_left == 0;
  if (completion.last) {
    request.over = true;
    ++totals_.num_requests_finished;
  }
  request.sink->on_complete(std::move(completion));
}

}  // namespace outrider
