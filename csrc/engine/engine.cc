#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>
#include <span>

#include "core/float_environment.h"
#include "engine/scheduler.h"

namespace outrider {

namespace {

using Clock = std::chrono::steady_clock;

constexpr float kGreedyTemperature = 1e-5f;

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

Processors processors_of(const SamplingParams& sampling) {
  if (sampling.temperature < kGreedyTemperature) return {};
  return {.mode = VerifyMode::rejection,
          .temperature = sampling.temperature,
          .top_k = sampling.top_k,
          .top_p = sampling.top_p};
}

uint64_t draw_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Engine::Engine(Executor& executor, ControlServer* control)
    : executor_(executor), control_(control), fingerprint_(executor.numerics_fingerprint()) {
  limits_.vocab_size = executor.config().vocab_size;
  limits_.max_positions = executor.max_positions();
  limits_.drafters = executor.drafters();
  limits_.default_drafter = executor.default_drafter();
}

void Engine::submit(Request request, std::shared_ptr<RequestSink> sink) {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      waiting_.push_back({std::move(request), std::move(sink)});
      ++stats_.num_requests_waiting;
      wake_.notify_one();
      return;
    }
    reason = failure_.value_or("the server is shutting down");
  }
  sink->on_error(absl::UnavailableError(reason));
}

void Engine::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
}

void Engine::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  if (!failure_) failure_ = reason;
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Engine::run() {
  set_float_environment();
  try {
    while (take_submission()) step();
  } catch (const DisagreementError& error) {
    const std::string what = "step " + std::to_string(next_step_ - 1) + ": " + error.what();
    fail(what);
    fail_all(absl::InternalError(what));
    throw Error(what);
  } catch (const Error& error) {
    fail(error.what());
    fail_all(absl::UnavailableError(error.what()));
    throw;
  }
  std::optional<std::string> failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  fail_all(absl::UnavailableError(failure.value_or("the server is shutting down")));
  if (failure) throw Error(*failure);
}

bool Engine::take_submission() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && !running_ && waiting_.empty()) wake_.wait(lock);
  if (stopping_) return false;
  if (running_) return true;
  Submission next = std::move(waiting_.front());
  waiting_.pop_front();
  --stats_.num_requests_waiting;
  stats_.num_requests_running = 1;
  lock.unlock();
  running_.emplace(start(std::move(next)));
  return true;
}

Engine::Running Engine::start(Submission submission) const {
  const Request& request = submission.request;
  const auto prompt_length = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens =
      request.sampling.max_tokens.value_or(limits_.max_positions - prompt_length);
  const SpeculationParams& speculation = request.speculation;
  const int lookahead =
      speculation.off
          ? 0
          : speculation.num_speculative_tokens.value_or(executor_.options().num_speculative_tokens);
  const DrafterKind drafter = lookahead == 0        ? DrafterKind::none
                              : speculation.drafter ? *drafter_from_name(*speculation.drafter)
                                                    : limits_.default_drafter;
  Running running{
      .submission = {},
      .output = OutputStream(executor_.tokenizer(), request.sampling,
                             executor_.config().eos_token_ids, max_tokens),
      .max_length = prompt_length + max_tokens,
      .seed = request.sampling.seed ? *request.sampling.seed : draw_seed(),
      .drafter = drafter,
      .lookahead = lookahead,
      .speculation = {.drafter = drafter},
      .started = Clock::now(),
  };
  running.submission = std::move(submission);
  return running;
}

void Engine::step() {
  if (running_->submission.sink->cancelled()) {
    complete(FinishReason::cancelled);
    return;
  }
  const std::vector<uint8_t> plan = next_plan().serialise();
  if (control_ != nullptr) control_->publish(plan);
  const auto outcomes = executor_.execute(plan);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.num_steps;
  }
  for (const SlotOutcome& outcome : outcomes) apply(outcome);
  drop_cancelled();
}

void Engine::drop_cancelled() {
  std::vector<Submission> dropped;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->sink->cancelled()) {
        dropped.push_back(std::move(*it));
        it = waiting_.erase(it);
        --stats_.num_requests_waiting;
      } else {
        ++it;
      }
    }
  }
  for (const Submission& submission : dropped) {
    submission.sink->on_error(absl::CancelledError("cancelled while waiting"));
  }
}

StepPlan Engine::next_plan() {
  Running& running = *running_;
  const Request& request = running.submission.request;
  StepPlan plan{.step = next_step_++};
  ScheduledSequence sequence{.slot = 0,
                             .length = static_cast<int64_t>(request.prompt.size()),
                             .max_length = running.max_length,
                             .max_draft_positions = executor_.max_draft_positions(running.drafter),
                             .lookahead = running.lookahead};
  std::span<const int32_t> tokens = request.prompt;
  if (running.admitted) {
    const SequenceState& slot = executor_.slot(0);
    tokens = slot.tokens;
    sequence.length = static_cast<int64_t>(tokens.size());
    sequence.num_cached = slot.num_cached;
  } else {
    if (slot_used_) plan.released.push_back(0);
    plan.admitted.push_back({.slot = 0,
                             .prompt = request.prompt,
                             .processors = processors_of(request.sampling),
                             .seed = running.seed,
                             .drafter = running.drafter});
    running.admitted = slot_used_ = true;
  }
  PlannedWork work = plan_work(sequence, executor_.options().prefill_chunk);
  if (running.drafter == DrafterKind::prompt_lookup) {
    work.proposed = prompt_lookup(tokens, work.num_draft_tokens);
    work.num_draft_tokens = static_cast<int32_t>(work.proposed.size());
  }
  plan.work.push_back(std::move(work));
  return plan;
}

void Engine::apply(const SlotOutcome& outcome) {
  Running& running = *running_;
  if (outcome.verdict.non_finite) {
    running.submission.sink->on_error(
        absl::InternalError("the model's logits hold a NaN or an infinity at position " +
                            std::to_string(executor_.slot(outcome.slot).tokens.size()) + ", step " +
                            std::to_string(next_step_ - 1)));
    retire(true);
    return;
  }
  running.last_token = Clock::now();
  if (running.output.num_tokens() == 0) running.first_token = running.last_token;
  const auto& tokens = executor_.slot(outcome.slot).tokens;
  int num_emitted = 0;
  for (const int32_t token : std::span(tokens).last(outcome.verdict.num_accepted + 1)) {
    const bool drafted = num_emitted < outcome.verdict.num_accepted;
    ++num_emitted;
    if (!running.output.push(token, drafted)) break;
  }
  count(outcome, num_emitted);
  Chunk chunk = running.output.take();
  if (!chunk.token_ids.empty() || !chunk.text.empty()) {
    running.submission.sink->on_chunk(std::move(chunk));
  }
  if (running.output.finished()) complete(running.output.finish_reason());
}

// What lies behind the end of an answer inside a step is not counted.
void Engine::count(const SlotOutcome& outcome, int num_emitted) {
  const Verdict& verdict = outcome.verdict;
  SpeculationStats& stats = running_->speculation;
  const bool whole = num_emitted == verdict.num_accepted + 1;
  const int drafted = whole ? outcome.num_drafted : num_emitted;
  const int accepted = std::min(verdict.num_accepted, num_emitted);
  ++stats.num_decode_steps;
  if (drafted > 0) ++stats.num_spec_steps;
  stats.num_draft_tokens += drafted;
  stats.num_accepted_draft_tokens += accepted;
  for (int i = 0; i < drafted; ++i) ++stats.drafted_per_position[i];
  for (int i = 0; i < accepted; ++i) ++stats.accepted_per_position[i];
  if (whole) {
    stats.alpha_sum += verdict.alpha_sum;
    stats.alpha_rows += verdict.alpha_rows;
  }
  const std::lock_guard lock(mutex_);
  stats_.num_draft_tokens += drafted;
  stats_.num_accepted_draft_tokens += accepted;
  stats_.num_completion_tokens += num_emitted;
}

void Engine::complete(FinishReason reason) {
  Running& running = *running_;
  const Request& request = running.submission.request;
  const auto now = Clock::now();
  const bool any = running.output.num_tokens() > 0;
  Completion completion;
  completion.finish_reason = reason;
  completion.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  completion.completion_tokens = running.output.num_tokens();
  completion.timings = {.queue_ms = ms_between(request.received, running.started),
                        .prefill_ms = ms_between(running.started, any ? running.first_token : now),
                        .decode_ms = any ? ms_between(running.first_token, running.last_token) : 0,
                        .total_ms = ms_between(request.received, now),
                        .ttft_ms = any ? ms_between(request.received, running.first_token) : 0};
  completion.speculation = running.speculation;
  completion.mode = running.lookahead == 0 ? SpeculationMode::off
                    : processors_of(request.sampling).mode == VerifyMode::greedy
                        ? SpeculationMode::greedy
                        : SpeculationMode::rejection;
  completion.seed = running.seed;
  completion.numerics_fingerprint = fingerprint_;
  spdlog::debug("request {}: {} prompt tokens, {} tokens, {:.1f} ms", request.request_id,
                completion.prompt_tokens, completion.completion_tokens,
                completion.timings.total_ms);
  running.submission.sink->on_complete(std::move(completion));
  retire(false);
}

void Engine::retire(bool failed) {
  running_.reset();
  const std::lock_guard lock(mutex_);
  stats_.num_requests_running = 0;
  ++(failed ? stats_.num_requests_failed : stats_.num_requests_finished);
}

void Engine::fail_all(const absl::Status& status) {
  std::deque<Submission> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
    stats_.num_requests_waiting = 0;
    stats_.num_requests_failed += static_cast<int64_t>(waiting.size());
  }
  if (running_) {
    running_->submission.sink->on_error(status);
    retire(true);
  }
  for (const Submission& submission : waiting) submission.sink->on_error(status);
}

}  // namespace outrider
