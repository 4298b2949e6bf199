#include "engine/engine.h"

#include <absl/strings/str_cat.h>

#include <span>
#include <utility>

#include "core/digest.h"
#include "engine/metrics.h"

namespace outrider {
namespace {

// A request's priority is worth so much waiting.
constexpr double kSecondsPerPriority = 10;
// A step with prompt rows may take so much longer than one without them; a millisecond more is
// nothing to anybody.
constexpr double kPrefillSlowdown = 1.4;
constexpr double kPrefillMs = 1;
// So many requests that fail with NaN within so many steps are no accident of theirs.
constexpr size_t kMaxNonFinite = 3;
constexpr uint64_t kNonFiniteSteps = 16;

TokenLogprobs to_logprobs(const LogprobRow& row, int32_t token, float logit) {
  const auto logprob = [&](float l) { return static_cast<float>(l - row.log_sum_exp); };
  TokenLogprobs result{.token = {token, logprob(logit)}, .top = {}};
  for (int i = 0; i < row.num_top; ++i) {
    result.top.push_back({row.top[i].token, logprob(row.top[i].logit)});
  }
  return result;
}

}  // namespace

SchedulerLimits scheduler_limits(const Executor& executor) {
  const EngineOptions& options = executor.options();
  return {.num_slots = options.max_sequences,
          .num_pages = executor.num_pages(),
          .num_draft_pages = executor.num_draft_pages(),
          .max_rows = options.max_rows,
          .prefill_chunk = options.prefill_chunk,
          .prefill_beside = options.prefill_beside,
          .costs = executor.tables().target,
          .prefill_slowdown = kPrefillSlowdown,
          .prefill_ms = kPrefillMs,
          .prefix_cache = options.prefix_cache};
}

Engine::Engine(Executor& executor, ControlServer* control, StepObservers observers,
               Quarantine* quarantine)
    : executor_(executor),
      control_(control),
      observers_(observers),
      quarantine_(quarantine),
      fingerprint_(executor.numerics_fingerprint()),
      prefix_salt_(draw_seed()),
      scheduler_(scheduler_limits(executor)),
      lookahead_(executor.options().lookahead, executor.tables()),
      delivery_(std::in_place) {
  limits_.vocab_size = executor.config().vocab_size;
  limits_.max_positions = executor.max_positions();
  limits_.eos_token_ids = executor.config().eos_token_ids;
  limits_.max_kv_tokens = (executor.num_pages() - 1) * kPageTokens;
  limits_.drafters = executor.drafters();
  limits_.default_drafter = executor.default_drafter();
  limits_.max_draft_tokens = executor.options().max_draft_tokens;
  limits_.max_alternatives = executor.options().max_alternatives;
}

void Engine::wake() {
  executor_.expect_work();
  wakeups_.fetch_add(1);
  wakeups_.notify_one();
}

void Engine::submit(Request request, std::shared_ptr<RequestSink> sink) {
  auto submission = std::make_unique<Submission>();
  if (quarantine_ != nullptr) {
    submission->digest = quarantine_->digest_of(request);
    if (absl::Status status = quarantine_->check(submission->digest); !status.ok()) {
      return sink->on_error(std::move(status));
    }
  }
  submission->output.emplace(executor_.tokenizer(), request.sampling.stop);
  const EngineOptions& options = executor_.options();
  submission->settings = settle(request, limits_, options.lookahead, options.tpot_slo_ms);
  submission->end.emplace(request.sampling, limits_.eos_token_ids, submission->settings.max_tokens);
  submission->output->resume(request.emitted, *submission->end);
  submission->request = std::move(request);
  submission->sink = std::move(sink);
  if (inbox_.push(submission)) return wake();
  std::string reason = "the server is shutting down";
  {
    const std::lock_guard lock(failure_mutex_);
    reason = failure_.value_or(reason);
  }
  submission->sink->on_error(absl::UnavailableError(reason));
}

void Engine::stop() {
  stopping_ = true;
  wake();
}

void Engine::fail(const std::string& reason) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = reason;
  }
  stop();
}

EngineStats Engine::stats() const {
  const Delivery::Totals& totals = delivery_->totals();
  return {.num_requests_running = shared_stats_.running,
          .num_requests_waiting = shared_stats_.waiting + inbox_.num_answers(),
          .num_tokens_waiting = shared_stats_.waiting_tokens + inbox_.num_tokens(),
          .num_requests_finished = totals.num_requests_finished,
          .num_requests_failed = totals.num_requests_failed,
          .num_steps = shared_stats_.steps,
          .num_draft_tokens = totals.num_draft_tokens,
          .num_accepted_draft_tokens = totals.num_accepted_draft_tokens,
          .num_completion_tokens = totals.num_completion_tokens,
          .num_preemptions = shared_stats_.preemptions,
          .kv_pages_used = shared_stats_.pages_used,
          .kv_pages = executor_.num_pages(),
          .prefix_cache_queries = shared_stats_.prefix_queries,
          .prefix_cache_hits = shared_stats_.prefix_hits,
          .drafters = shared_stats_.drafters.get()};
}

void Engine::run() {
  try {
    while (wait_for_work()) step();
  } catch (const DisagreementError& error) {
    const std::string what = absl::StrCat("step ", next_step_ - 1, ": ", error.what());
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
    const std::lock_guard lock(failure_mutex_);
    failure = failure_;
  }
  executor_.rest(
      [&] { fail_all(absl::UnavailableError(failure.value_or("the server is shutting down"))); });
  if (failure) throw Error(*failure);
}

bool Engine::wait_for_work() {
  while (true) {
    const uint32_t seen = wakeups_;
    if (stopping_) return false;
    for (const auto& submission : inbox_.take()) start(*submission);
    drop_ended();
    if (!sequences_.empty()) return true;
    publish_stats();  // before whoever hears of an end can ask
    delivery_->push(delivered_);
    executor_.rest([&] { wakeups_.wait(seen); });
  }
}

// The request's n answers wait for their turn.
void Engine::start(Submission& submission) {
  const Request& request = submission.request;
  const SamplingParams& sampling = request.sampling;
  const auto prompt_length = static_cast<int64_t>(request.prompt.size());
  const RequestSettings& settings = submission.settings;
  auto progress = std::make_shared<RequestProgress>();
  progress->sink = std::move(submission.sink);
  progress->choices_left = sampling.n;
  progress->digest = submission.digest;
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), request.emitted.begin(), request.emitted.end());
  const double arrival = std::chrono::duration<double>(request.received - epoch_).count();
  const int64_t first_id = next_id_;
  for (int32_t choice = 0; choice < sampling.n; ++choice) {
    auto answer = std::make_shared<Answer>(progress, *submission.output);
    answer->received = request.received;
    answer->stream_stats = request.stream_stats;
    Completion& completion = answer->completion;
    completion.index = choice;
    completion.prompt_tokens = prompt_length;
    completion.speculation.drafter = settings.drafter;
    completion.speculation.tpot_slo_ms = settings.tpot_slo_ms;
    completion.mode = settings.mode;
    completion.lenience = settings.processors.lenience;
    completion.seed = settings.seed;
    completion.numerics_fingerprint = fingerprint_;
    if (answer->output.finished()) {
      answer->started = EngineClock::now();
      Delivered done{.answer = std::move(answer)};
      done.finished_already = true;
      delivered_.push_back(std::move(done));
      return;
    }
    const int64_t id = next_id_++;
    ++progress->sequences_left;
    std::optional<OutputStream> text;
    if (!sampling.stop.empty()) text = *submission.output;
    sequences_.emplace(id, Sequence{.answer = std::move(answer),
                                    .end = *submission.end,
                                    .text = std::move(text),
                                    .top_logprobs = sampling.logprobs.value_or(-1),
                                    .top_prompt_logprobs = sampling.prompt_logprobs.value_or(0)});
    tokens_waiting_ += std::ssize(tokens);
    lookahead_.add(
        id, {.drafter = settings.drafter,
             .drawing = drawing_of(settings.processors),
             .may_copy = settings.drafter == DrafterKind::head && !settings.lookahead_is_exact &&
                         !request.speculation.drafter && !executor_.options().drafter,
             .exact = settings.lookahead_is_exact,
             .max_step_ms = settings.tpot_slo_ms,
             .rules = settings.rules,
             .num_prompt_tokens = prompt_length});
    scheduler_.add({.id = id,
                    .request = first_id,
                    .choice = choice,
                    .order = arrival - kSecondsPerPriority * request.priority,
                    .prompt = tokens,
                    .num_prompt_tokens = prompt_length,
                    .max_length = prompt_length + settings.max_tokens,
                    .rules = settings.rules,
                    .processors = settings.processors,
                    .seed = settings.seed,
                    .drafter = settings.drafter,
                    .lookahead = settings.lookahead,
                    .lookahead_is_exact = settings.lookahead_is_exact,
                    .alternatives = settings.alternatives,
                    .max_draft_positions = executor_.max_draft_positions(settings.drafter),
                    .max_step_ms = settings.tpot_slo_ms,
                    .prompt_logits = sampling.prompt_logprobs && request.emitted.empty(),
                    .salt = digest(&request.tenant, sizeof request.tenant, prefix_salt_)});
  }
}

void Engine::drop_ended() {
  std::vector<int64_t> ended;
  for (auto& [id, sequence] : sequences_) {
    Answer& answer = *sequence.answer;
    const bool cancelled = answer.request->sink->cancelled();
    if (!cancelled && !answer.request->over) continue;
    if (cancelled) {
      Delivered end{.answer = sequence.answer};
      if (answer.request->begun) {
        // What the request's other answers have is the client's still.
        if (!sequence.started) answer.started = EngineClock::now();
        end.cancelled = true;
      } else {
        end.error = absl::CancelledError("cancelled while waiting");
      }
      delivered_.push_back(std::move(end));
    }
    if (!sequence.started) tokens_waiting_ -= std::ssize(scheduler_.tokens(id));
    ended.push_back(id);
  }
  for (const int64_t id : ended) end_sequence(id, false);
}

void Engine::end_sequence(int64_t id, bool well) {
  const auto at = sequences_.find(id);
  RequestProgress& request = *at->second.answer->request;
  // A page that made a NaN would make one of every prompt that found it.
  scheduler_.remove(id, request.non_finite);
  lookahead_.remove(id);
  if (--request.sequences_left == 0 && request.begun && quarantine_ != nullptr) {
    quarantine_->ended(request.digest, well && !request.non_finite);
  }
  sequences_.erase(at);
}

void Engine::step() {
  const auto begin = EngineClock::now();
  const bool chosen = executor_.options().lookahead.kind != LookaheadPolicy::Kind::fixed;
  StepPlan plan = scheduler_.plan(chosen ? &lookahead_ : nullptr);
  plan.step = next_step_++;
  note_admissions(plan);
  propose(plan);
  const std::vector<uint8_t> bytes = plan.serialise();
  if (control_ != nullptr) control_->publish(bytes);
  publish_stats();
  delivery_->push(delivered_);
  const auto executed = EngineClock::now();
  decoded_.clear();
  StepRecord record = {.step = plan.step,
                       .begin = begin,
                       .executed = executed,
                       .num_prompt_rows = scheduler_.prefill_rows().target};
  for (const SlotOutcome& outcome : executor_.execute(bytes)) {
    const size_t num_before = decoded_.size();
    apply(outcome);
    if (decoded_.size() == num_before) continue;
    ++record.num_decoding;
    const LookaheadOutcome& decoded = decoded_.back();
    record.num_drafted += decoded.drafts.num_verified();
    record.num_alternatives += decoded.drafts.num_alternatives;
    record.num_refed += decoded.num_refed;
    record.num_tokens += decoded.num_emitted;
    record.num_accepted += decoded.drafts.within(decoded.num_emitted).num_kept();
  }
  account_for_step(std::chrono::duration<double, std::milli>(EngineClock::now() - begin).count());
  record.end = EngineClock::now();
  record.times = executor_.step_times();
  observers_.observe(record);
}

// What copy drafters add to the plan, and what a draft head cannot do yet.
void Engine::propose(StepPlan& plan) {
  for (PlannedWork& work : plan.work) {
    if (work.num_draft_tokens == 0) continue;
    const int64_t id = scheduler_.sequence_at(work.slot);
    const DrafterKind drafter = lookahead_.drafter_now(id);
    if (drafter == DrafterKind::head && !sequences_.at(id).has_state) {
      work.num_draft_tokens = work.num_alternatives = 0;
    }
    if (!drafts_by_copying(drafter)) continue;
    work.proposed = lookahead_.propose(id, scheduler_.tokens(id), work.num_draft_tokens);
    work.num_draft_tokens = static_cast<int32_t>(work.proposed.size());
  }
}

void Engine::note_admissions(StepPlan& plan) {
  const auto now = EngineClock::now();
  for (Admission& admission : plan.admitted) {
    Sequence& sequence = sequences_.at(scheduler_.sequence_at(admission.slot));
    admission.top_logprobs = sequence.top_logprobs;
    admission.top_prompt_logprobs = sequence.top_prompt_logprobs;
    sequence.has_state = false;
    if (std::exchange(sequence.started, true)) continue;  // it was preempted
    RequestProgress& request = *sequence.answer->request;
    if (!std::exchange(request.begun, true) && quarantine_ != nullptr) {
      quarantine_->began(request.digest);
    }
    tokens_waiting_ -= std::ssize(scheduler_.tokens(scheduler_.sequence_at(admission.slot)));
    sequence.answer->started = now;
    Completion& completion = sequence.answer->completion;
    // Behind the prompt may be what a resumed answer had already.
    completion.cached_tokens = std::min<int64_t>(admission.num_cached, completion.prompt_tokens);
  }
}

void Engine::apply(const SlotOutcome& outcome) {
  const int64_t id = scheduler_.sequence_at(outcome.slot);
  Sequence& sequence = sequences_.at(id);
  const auto non_finite_row =
      std::ranges::find_if(outcome.prompt_logprobs, &LogprobRow::non_finite);
  if (non_finite_row != outcome.prompt_logprobs.end()) {
    const int64_t row =
        outcome.first_prompt_row + (non_finite_row - outcome.prompt_logprobs.begin());
    return fail_non_finite(outcome, row + 1);
  }
  const std::span<const int32_t> state = executor_.slot(outcome.slot).tokens;
  if (outcome.decoded && outcome.verdict.non_finite) {
    return fail_non_finite(outcome, std::ssize(state) + outcome.verdict.num_accepted);
  }

  Delivered item{.answer = sequence.answer};
  for (size_t i = 0; i < outcome.prompt_logprobs.size(); ++i) {
    const int64_t row = outcome.first_prompt_row + static_cast<int64_t>(i);
    if (row < sequence.next_prompt_row) continue;  // told before a preemption
    if (row + 1 >= sequence.answer->completion.prompt_tokens) break;
    const LogprobRow& logprobs = outcome.prompt_logprobs[i];
    item.prompt_logprobs.push_back(to_logprobs(logprobs, state[row + 1], logprobs.token_logit));
    sequence.next_prompt_row = row + 1;
  }
  if (!outcome.decoded) {
    if (!item.prompt_logprobs.empty()) delivered_.push_back(std::move(item));
    return;
  }
  sequence.has_state = true;
  const Verdict& verdict = outcome.verdict;
  const auto tokens = state.last(outcome.num_accepted() + 1);
  bool ended = false;
  for (size_t i = 0; i < tokens.size() && !ended; ++i) {
    item.tokens.push_back(tokens[i]);
    item.end = sequence.end.push(tokens[i]);
    ended = item.end.has_value();
    if (sequence.text && !ended) {
      ended = !sequence.text->push(tokens[i], TokenOrigin::plain, std::nullopt);
      sequence.text->take();
    }
    if (outcome.logprobs.empty()) continue;
    const LogprobRow& row = outcome.logprobs[i];
    const bool extra = static_cast<int>(i) == verdict.num_accepted;
    item.logprobs.push_back(
        to_logprobs(row, tokens[i], extra ? verdict.extra_logit : row.token_logit));
  }
  item.copied = drafts_by_copying(lookahead_.drafter_now(id));
  if (outcome.num_drafted > 0) item.draft_cost = lookahead_.draft_cost_now(id);
  item.drafts = {.num_drafted = outcome.num_drafted,
                 .num_accepted = verdict.num_accepted,
                 .alpha_sum = verdict.alpha_sum,
                 .shift_sum = verdict.shift_sum,
                 .alpha_rows = verdict.alpha_rows,
                 .alpha_counts = sequence.answer->completion.mode != SpeculationMode::rejection,
                 .num_alternatives = outcome.num_alternatives,
                 .alternative = outcome.alternative};
  item.last = ended;
  const auto num_emitted = static_cast<int>(item.tokens.size());
  decoded_.push_back({.id = id,
                      .position = std::ssize(state) - std::ssize(tokens),
                      .num_missed = scheduler_.num_missed(id),
                      .num_refed = scheduler_.num_refed(id),
                      .drafts = item.drafts,
                      .num_emitted = num_emitted});
  if (observers_.metrics != nullptr) {
    observers_.metrics->verified(outcome.num_drafted, item.drafts.within(num_emitted));
    observers_.metrics->gathered(verdict.gathered);
  }
  delivered_.push_back(std::move(item));

  scheduler_.commit(id, tokens.first(num_emitted), outcome.in_cache);
  if (ended) end_sequence(id, true);
}

void Engine::account_for_step(double ms) {
  const StepPhases& times = executor_.step_times();
  const TimedStep timed = lookahead_.observe(decoded_, scheduler_.prefill_rows(),
                                             {ms, 1e3 * times.draft, times.recorded});
  for (Delivered& item : delivered_) item.timed = timed;
}

// One request's bad luck ends that request; that of several at once means that something is broken
// here.
void Engine::fail_non_finite(const SlotOutcome& outcome, int64_t position) {
  const uint64_t step = next_step_ - 1;
  const int64_t id = scheduler_.sequence_at(outcome.slot);
  Delivered item{.answer = sequences_.at(id).answer};
  const bool told = std::exchange(item.answer->request->non_finite, true);
  item.error = absl::InternalError(absl::StrCat(
      "the model's logits hold a NaN or an infinity at position ", position, ", step ", step));
  const Digest128 request = item.answer->request->digest;
  const std::span prompt(executor_.slot(outcome.slot).tokens.data(),
                         item.answer->completion.prompt_tokens);
  const uint64_t of_prompt = digest(prompt.data(), prompt.size_bytes());
  delivered_.push_back(std::move(item));
  end_sequence(id, false);
  if (told) return;  // another of its answers
  std::erase_if(non_finite_, [&](const NonFinite& failed) { return failed.prompt == of_prompt; });
  non_finite_.push_back({step, of_prompt, request});
  if (non_finite_.size() < kMaxNonFinite) return;
  if (step - non_finite_.front().step < kNonFiniteSteps) {
    if (quarantine_ != nullptr) {  // the job dies of them
      for (const NonFinite& failed : non_finite_) quarantine_->began(failed.request);
    }
    throw Error(absl::StrCat("the model's logits were not finite for ", kMaxNonFinite,
                             " prompts within ", kNonFiniteSteps, " steps"));
  }
  non_finite_.erase(non_finite_.begin());
}

void Engine::publish_stats() {
  const SchedulerStats stats = scheduler_.stats();
  if (observers_.metrics != nullptr) {
    observers_.metrics->set_kv_cache_usage(static_cast<double>(stats.pages_used) /
                                           static_cast<double>(stats.num_pages));
    observers_.metrics->prefix_lookup(stats.prefix_queries - shared_stats_.prefix_queries,
                                      stats.prefix_hits - shared_stats_.prefix_hits);
  }
  shared_stats_.running = stats.num_running;
  shared_stats_.waiting = stats.num_waiting;
  shared_stats_.waiting_tokens = tokens_waiting_;
  shared_stats_.steps = static_cast<int64_t>(next_step_ - 1);
  shared_stats_.preemptions = stats.num_preemptions;
  shared_stats_.pages_used = stats.pages_used;
  shared_stats_.prefix_queries = stats.prefix_queries;
  shared_stats_.prefix_hits = stats.prefix_hits;
  shared_stats_.drafters.set(lookahead_.reports());
}

void Engine::fail_all(const absl::Status& status) {
  delivery_->push(delivered_);
  for (const auto& submission : inbox_.close()) {
    auto progress = std::make_shared<RequestProgress>();
    progress->sink = std::move(submission->sink);
    Delivered end{.answer = std::make_shared<Answer>(progress, *std::move(submission->output))};
    end.error = status;
    delivered_.push_back(std::move(end));
  }
  for (auto& [id, sequence] : sequences_) {
    scheduler_.remove(id);
    Delivered end{.answer = std::move(sequence.answer)};
    end.error = status;
    delivered_.push_back(std::move(end));
  }
  sequences_.clear();
  tokens_waiting_ = 0;
  delivery_->push(delivered_);
  delivery_->drain();
  publish_stats();
}

}  // namespace outrider
