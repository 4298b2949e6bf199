#include "bench/simulated_load.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <unordered_map>

#include "bench/random.h"
#include "core/error.h"

namespace outrider {
namespace {

double between(std::mt19937_64& random, const std::pair<double, double>& range) {
  return range.first + uniform(random) * (range.second - range.first);
}

int between(std::mt19937_64& random, const std::pair<int, int>& range) {
  return range.first + static_cast<int>(below(random, range.second - range.first + 1));
}

struct Request {
  int prompt_tokens, tokens;
  double alpha;
  double wait;  // arrivals at random: behind the one before, in means
  uint64_t seed;
};

std::vector<Request> draw_requests(const SimulatedLoad& load, uint64_t seed) {
  std::mt19937_64 arrivals = make_generator(seed, RandomPurpose::arrivals);
  std::mt19937_64 lengths = make_generator(seed, RandomPurpose::lengths);
  std::mt19937_64 drafts = make_generator(seed, RandomPurpose::seeds);
  std::vector<Request> requests;
  for (int i = 0; i < load.requests; ++i) {
    Request& request = requests.emplace_back();
    request.prompt_tokens = between(lengths, load.prompt_tokens);
    request.tokens = between(lengths, load.tokens);
    request.wait = -std::log1p(-uniform(arrivals));
    request.alpha = between(drafts, load.alpha);
    request.seed = drafts();
  }
  return requests;
}

// All prompts are different, and made of zeros.
SchedulerLimits without_prefixes(SchedulerLimits limits) {
  limits.prefix_cache = false;
  return limits;
}

class Simulation {
 public:
  Simulation(const SimulatedServer& server, const SimulatedLoad& load, bool speculates,
             uint64_t seed)
      : server_(server),
        load_(load),
        speculates_(speculates),
        requests_(draw_requests(load, seed)),
        answers_(requests_.size()),
        truth_(server.tables),
        scheduler_(without_prefixes(server.limits)),
        planner_({}, server.tables),
        noise_(make_generator(seed, RandomPurpose::noise)) {
    CHECK((load.rate > 0) != (load.users > 0));
    // A cache of the drafter's, and what it would copy of made-up prompts, are not simulated.
    CHECK(can_simulate(server.drafter));
    double at = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (load.rate > 0) {
        arrive(at += requests_[i].wait / load.rate);
      } else if (i < static_cast<size_t>(load.users)) {
        arrive(0);
      }
    }
  }

  std::vector<SimulatedAnswer> run() {
    while (!running_.empty() || !arrivals_.empty()) {
      if (running_.empty()) now_ = std::max(now_, arrivals_.top());
      while (!arrivals_.empty() && arrivals_.top() <= now_) take();
      step();
    }
    CHECK(num_taken_ == static_cast<int64_t>(requests_.size()));
    return std::move(answers_);
  }

 private:
  struct Running {
    int left;
    int64_t fed = 0;         // positions that the target has seen
    bool has_state = false;  // has decoded: a draft head can go on from there
    std::mt19937_64 random;
  };

  void arrive(double at) { arrivals_.push(at); }

  // The next request, in their order.
  void take() {
    const double arrival = arrivals_.top();
    arrivals_.pop();
    const int64_t id = num_taken_++;
    const Request& request = requests_[id];
    answers_[id] = {.arrival = arrival, .tokens = request.tokens};
    running_.emplace(id, Running{.left = request.tokens, .random = std::mt19937_64(request.seed)});
    const DrafterKind drafter = speculates_ ? server_.drafter : DrafterKind::none;
    planner_.add(id, {.drafter = drafter, .exact = !speculates_});
    scheduler_.add({.id = id,
                    .request = id,
                    .order = arrival,
                    .prompt = std::vector<int32_t>(request.prompt_tokens),
                    .num_prompt_tokens = request.prompt_tokens,
                    .max_length = request.prompt_tokens + request.tokens,
                    .drafter = drafter,
                    .lookahead = speculates_ ? kMaxDraftTokens : 0,
                    .lookahead_is_exact = !speculates_,
                    .alternatives = speculates_ ? server_.max_alternatives : 0,
                    .max_draft_positions = std::numeric_limits<int64_t>::max()});
  }

  // What Engine::step does, but for the ranks.
  void step() {
    StepPlan plan = scheduler_.plan(&planner_);
    for (const Admission& admission : plan.admitted) {
      Running& sequence = running_.at(scheduler_.sequence_at(admission.slot));
      sequence.fed = admission.num_cached;
      sequence.has_state = false;
    }
    const StepCosts& costs = truth_.target();
    DecodeShape shape;
    double contexts_ms = 0;  // of prompts
    for (PlannedWork& work : plan.work) {
      const int64_t id = scheduler_.sequence_at(work.slot);
      Running& sequence = running_.at(id);
      contexts_ms += costs.context_ms(work.prefill_end - sequence.fed, sequence.fed);
      sequence.fed = work.prefill_end;
      if (!work.decode) continue;
      if (server_.drafter == DrafterKind::head && !sequence.has_state) {
        work.num_draft_tokens = work.num_alternatives = 0;
      }
      const auto position = static_cast<int64_t>(scheduler_.tokens(id).size());
      shape.add(costs, position, planner_.drafter_now(id), Drawing::greedy,
                {.num_drafted = work.num_draft_tokens,
                 .num_alternatives = work.num_alternatives,
                 .num_refed = scheduler_.num_refed(id),
                 .num_missed = scheduler_.num_missed(id)});
    }
    shape.prompt_rows = scheduler_.prefill_rows().target;
    double ms = truth_.step_ms(shape) + contexts_ms;
    const double slow = std::exp(server_.noise * normal(noise_));
    const double draft_ms = slow * truth_.draft_ms(shape);
    ms = slow * ms + draft_ms;
    now_ += ms / 1e3;

    std::vector<LookaheadOutcome> outcomes;
    for (const PlannedWork& work : plan.work) {
      if (work.decode) outcomes.push_back(decode(work));
    }
    planner_.observe(outcomes, scheduler_.prefill_rows(), {ms, draft_ms});
  }

  LookaheadOutcome decode(const PlannedWork& work) {
    const int64_t id = scheduler_.sequence_at(work.slot);
    Running& sequence = running_.at(id);
    SimulatedAnswer& answer = answers_[id];
    sequence.has_state = true;
    if (answer.first == 0) answer.first = now_;
    const int drafted = work.num_draft_tokens;
    const double alpha = requests_[id].alpha;
    int accepted = 0, alternative = -1;
    while (accepted < drafted && uniform(sequence.random) < alpha) ++accepted;
    for (int i = 0; accepted == 0 && i < work.num_alternatives && alternative < 0; ++i) {
      if (uniform(sequence.random) < alpha / (3 + i)) alternative = i;
    }
    const int kept = alternative >= 0 ? 1 : accepted;
    const LookaheadOutcome outcome = {
        .id = id,
        .position = static_cast<int64_t>(scheduler_.tokens(id).size()),
        .num_missed = scheduler_.num_missed(id),
        .num_refed = scheduler_.num_refed(id),
        .drafts = {.num_drafted = drafted,
                   .num_accepted = accepted,
                   .alpha_sum = static_cast<double>(accepted),
                   .alpha_rows = std::min(accepted + 1, drafted),
                   .num_alternatives = work.num_alternatives,
                   .alternative = alternative},
        .num_emitted = std::min(kept + 1, sequence.left)};
    scheduler_.commit(id, std::vector<int32_t>(outcome.num_emitted), alternative < 0);
    sequence.fed = outcome.position + outcome.num_emitted - 1;
    sequence.left -= outcome.num_emitted;
    if (sequence.left > 0) return outcome;
    answer.end = now_;
    scheduler_.remove(id);
    planner_.remove(id);
    running_.erase(id);
    const auto asked = num_taken_ + static_cast<int64_t>(arrivals_.size());
    if (load_.users > 0 && asked < load_.requests) arrive(now_);
    return outcome;
  }

  const SimulatedServer& server_;
  const SimulatedLoad& load_;
  const bool speculates_;
  const std::vector<Request> requests_;
  std::vector<SimulatedAnswer> answers_;
  const StepPricing truth_;
  Scheduler scheduler_;
  LookaheadPlanner planner_;
  std::mt19937_64 noise_;
  std::priority_queue<double, std::vector<double>, std::greater<>> arrivals_;
  std::unordered_map<int64_t, Running> running_;  // or waiting for a slot
  int64_t num_taken_ = 0;
  double now_ = 0;
};

}  // namespace

bool can_simulate(DrafterKind drafter) {
  return drafter != DrafterKind::model && !drafts_by_copying(drafter);
}

std::vector<SimulatedAnswer> simulate(const SimulatedServer& server, const SimulatedLoad& load,
                                      bool speculates, uint64_t seed) {
  return Simulation(server, load, speculates, seed).run();
}

}  // namespace outrider
