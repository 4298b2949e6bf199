#include "bench/serve_bench.h"

#include <absl/status/status.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/bandwidth.h"
#include "bench/bench_report.h"
#include "bench/statistics.h"
#include "core/error.h"
#include "core/float_environment.h"
#include "engine/engine.h"
#include "engine/follower.h"

namespace outrider {
namespace {

using Clock = EngineClock;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Knows how long the sums of the ranks' parts took, where a call returns when they are done.
class TimedCommunicator final : public Communicator {
 public:
  explicit TimedCommunicator(Communicator& communicator) : communicator_(communicator) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  bool is_near() const override { return communicator_.is_near(); }
  void reserve_sum(int64_t max_elements) override { communicator_.reserve_sum(max_elements); }
  void all_reduce_sum(TensorView x, Stream& stream) override {
    const Clock::time_point start = Clock::now();
    communicator_.all_reduce_sum(x, stream);
    sums_.push_back({start, seconds(Clock::now() - start)});
  }
  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    communicator_.all_gather(mine, all, stream);
  }
  void broadcast(TensorView x, int root, Stream& stream) override {
    communicator_.broadcast(x, root, stream);
  }
  bool share(std::span<std::byte> memory) override { return communicator_.share(memory); }
  std::string failure() const override { return communicator_.failure(); }

  // Of the sums that began at `from` or later, since the last call. Those before are a drafter's.
  double take_sum_seconds(Clock::time_point from) {
    double total = 0;
    for (const Sum& sum : sums_) total += sum.begin < from ? 0 : sum.seconds;
    sums_.clear();
    return total;
  }

 private:
  struct Sum {
    Clock::time_point begin;
    double seconds;
  };

  Communicator& communicator_;
  std::vector<Sum> sums_;
};

struct Step {
  StepRecord record;
  double sum_seconds = 0;
};

// The parts of a step, from its begin to the next one's: all of its time.
enum Part { kPlan, kDraft, kTarget, kSums, kVerify, kExchange, kHost, kBetween, kNumParts };
constexpr const char* kPartNames[] = {"plan",   "draft",    "target", "all_reduce",
                                      "verify", "exchange", "host",   "between_steps"};
using Parts = std::array<double, kNumParts>;  // seconds

double sum(const Parts& parts) {
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

Parts parts_of(const Step& step, const Step& next) {
  const StepRecord& record = step.record;
  const StepPhases& times = record.times;
  Parts parts{};
  parts[kPlan] = seconds(record.executed - record.begin);
  parts[kDraft] = times.draft;
  parts[kTarget] = times.target - step.sum_seconds;
  parts[kSums] = step.sum_seconds;
  parts[kVerify] = times.verify;
  parts[kExchange] = times.exchange;
  parts[kHost] = seconds(record.end - record.executed) - times.draft - times.target - times.verify -
                 times.exchange;
  parts[kBetween] = seconds(next.record.begin - record.end);
  return parts;
}

// What is measured at one K.
struct Arm {
  int num_draft_tokens = 0;
  std::vector<Parts> steps;  // in which every sequence decoded, and nothing else was done
  double seconds = 0;        // of all of them
  int64_t tokens = 0, drafted = 0;
  double alpha = 0;  // of all its answers
  Parts ideal{};     // weights over bandwidth

  double quantile(int64_t per_mille) const {
    std::vector<double> all;
    for (const Parts& parts : steps) all.push_back(sum(parts));
    const auto at = all.begin() + nearest_rank(std::ssize(all), per_mille) - 1;
    std::nth_element(all.begin(), at, all.end());
    return *at;
  }
  // The mean over the middle half of the steps by their time, so that parts add up and what
  // disturbs a few steps does not count.
  Parts profile() const {
    std::vector<Parts> all = steps;
    std::sort(all.begin(), all.end(),
              [](const Parts& a, const Parts& b) { return sum(a) < sum(b); });
    const size_t begin = all.size() / 4, end = all.size() - begin;
    Parts mean{};
    for (size_t i = begin; i < end; ++i) {
      for (int p = 0; p < kNumParts; ++p) mean[p] += all[i][p] / static_cast<double>(end - begin);
    }
    return mean;
  }
};

// By profiles, against an arm without drafts.
struct Speedup {
  double draft_cost;  // c: of a drafted token, in plain steps
  double ideal;       // where verifying takes no longer than a plain step (Leviathan et al. 2023)
  double measured;
};

Speedup speedup(const Arm& arm, const Arm& plain, int64_t sequences) {
  const Parts profile = arm.profile();
  const double plain_s = sum(plain.profile());
  const double tokens = static_cast<double>(arm.tokens) /
                        static_cast<double>(sequences * static_cast<int64_t>(arm.steps.size()));
  return {.draft_cost = profile[kDraft] / (arm.num_draft_tokens * plain_s),
          .ideal = tokens / (1 + profile[kDraft] / plain_s),
          .measured = tokens * plain_s / sum(profile)};
}

// Submits sequences, and the next ones once all of them have ended; then stops the engine.
class Load {
 public:
  Load(const ServeBenchOptions& options, Engine& engine, std::vector<int> draft_tokens)
      : options_(options), engine_(engine), draft_tokens_(std::move(draft_tokens)) {}

  // The engine's thread before it runs, and delivery's from then on.
  void next() {
    if (begins_.size() == draft_tokens_.size()) return engine_.stop();
    const int k = draft_tokens_[begins_.size()];
    begins_.push_back(Clock::now());
    left_ = options_.sequences;
    for (int64_t i = 0; i < options_.sequences; ++i) {
      engine_.submit(request(k), std::make_shared<Sink>(*this));
    }
  }

  // Throws Error where the engine would refuse the sequences.
  void check() {
    const absl::Status status = validate(request(options_.num_draft_tokens), engine_.limits());
    if (!status.ok()) throw Error("bench serve: " + std::string(status.message()));
    const int64_t room = engine_.limits().max_kv_tokens;
    const int64_t wanted =
        options_.sequences * (options_.prompt_tokens + options_.tokens + kMaxDraftTokens + 1);
    if (wanted > room) {
      throw Error("bench serve: the sequences take " + std::to_string(wanted) +
                  " tokens of the KV cache; expected at most " + std::to_string(room));
    }
  }

  // Once the engine has ended: when the sequences of each turn were submitted, and why one failed.
  const std::vector<Clock::time_point>& begins() const { return begins_; }
  const absl::Status& status() const { return status_; }
  // Probability that a drafted token is accepted, over the verified rows of all answers.
  double alpha() const { return drafted_.alpha(); }

 private:
  class Sink final : public RequestSink {
   public:
    explicit Sink(Load& load) : load_(load) {}
    void on_chunk(Chunk) override {}
    void on_complete(Completion completion) override {
      load_.drafted_.alpha_sum += completion.speculation.alpha_sum;
      load_.drafted_.alpha_rows += completion.speculation.alpha_rows;
      if (--load_.left_ == 0) load_.next();
    }
    void on_error(absl::Status status) override {
      load_.status_.Update(status);
      load_.engine_.stop();
    }
    bool cancelled() const override { return false; }

   private:
    Load& load_;
  };

  Request request(int k) {
    Request request;
    for (int64_t i = 0; i < options_.prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<int32_t>(random_() % engine_.limits().vocab_size));
    }
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int32_t>(options_.tokens);
    request.sampling.ignore_eos = true;
    request.speculation.off = k == 0;
    if (k > 0) {
      request.speculation.num_speculative_tokens = k;
      request.speculation.drafter = drafter_name(engine_.limits().default_drafter);
    }
    return request;
  }

  const ServeBenchOptions& options_;
  Engine& engine_;
  const std::vector<int> draft_tokens_;  // of each turn
  std::mt19937 random_{1};
  std::vector<Clock::time_point> begins_;
  int64_t left_ = 0;  // sequences of the turn that have not ended
  absl::Status status_;
  SpeculationStats drafted_;  // alpha's sums alone
};

// The steps of a turn in which all of its sequences decode, and none has a prompt to feed: those
// behind the first of them. One that records a graph is no step like the others.
void add_turn(Arm& arm, std::span<const Step> turn, int64_t sequences) {
  bool prompts_fed = false;
  for (size_t i = 0; i + 1 < turn.size(); ++i) {
    if (turn[i].record.num_decoding != sequences) continue;
    if (!std::exchange(prompts_fed, true) || turn[i].record.times.recorded) continue;
    arm.steps.push_back(parts_of(turn[i], turn[i + 1]));
    const double step_seconds = seconds(turn[i + 1].record.begin - turn[i].record.begin);
    CHECK(std::abs(sum(arm.steps.back()) - step_seconds) < 1e-9);
    arm.seconds += step_seconds;
    arm.tokens += turn[i].record.num_tokens;
    arm.drafted += turn[i].record.num_drafted;
  }
}

// Rank 0's part of the job.
class ServeBench {
 public:
  ServeBench(const ServeBenchOptions& options, const BenchDevice& device,
             TimedCommunicator& communicator, Executor& executor)
      : options_(options), device_(device), communicator_(communicator), executor_(executor) {
    arms_.push_back({.num_draft_tokens = 0});
    if (options.num_draft_tokens > 0) {
      arms_.push_back({.num_draft_tokens = options.num_draft_tokens});
    }
  }

  void run(ControlServer* control) {
    std::vector<int> turns;
    for (int round = 0; round < options_.rounds; ++round) {
      for (const Arm& arm : arms_) turns.push_back(arm.num_draft_tokens);
    }
    std::vector<Step> steps;
    const auto keep = [&](const StepRecord& record) {
      const auto drafting = std::chrono::duration<double>(record.times.draft);
      const auto drafted = record.executed + std::chrono::duration_cast<Clock::duration>(drafting);
      steps.push_back({record, communicator_.take_sum_seconds(drafted)});
    };
    std::optional<Load> load;  // outlives the engine, whose delivery speaks to it to the end
    {
      Engine engine(executor_, control, {.each_step = keep});
      load.emplace(options_, engine, turns);
      load->check();
      communicator_.take_sum_seconds(Clock::now());
      load->next();
      engine.run();
    }
    if (!load->status().ok()) throw Error("bench serve: " + load->status().ToString());
    if (options_.num_draft_tokens > 0) arms_.back().alpha = load->alpha();
    std::vector<Clock::time_point> begins = load->begins();
    begins.push_back(Clock::time_point::max());
    auto from = steps.begin();
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      const auto to = std::find_if(from, steps.end(), [&](const Step& step) {
        return step.record.begin >= begins[turn + 1];
      });
      add_turn(arms_[turn % arms_.size()], {from, to}, options_.sequences);
      from = to;
    }
    for (const Arm& arm : arms_) {
      if (arm.steps.empty()) {
        throw Error(
            "bench serve: there is no step in which all sequences decode; expected more "
            "tokens than " +
            std::to_string(options_.tokens) + " a sequence");
      }
    }
  }

  // bandwidth: bytes a second of rank 0's memory, while every rank reads.
  void set_bandwidth(double bandwidth) {
    bandwidth_ = bandwidth;
    for (Arm& arm : arms_) {
      arm.ideal[kTarget] = static_cast<double>(executor_.weight_bytes()) / bandwidth_;
      // Once a step: from then on a cache may have them.
      if (arm.num_draft_tokens == 0) continue;
      arm.ideal[kDraft] = static_cast<double>(executor_.draft_weight_bytes()) / bandwidth_;
    }
  }

  void print() const {
    std::printf(
        "ranks %d, %s, %lld sequences of %lld random and %lld greedy tokens, drafter %s; rank 0 "
        "reads %.1f MB of the target's weights a step and %.1f MB of the drafter's where it "
        "drafts, its memory %s %.1f GB/s\n\n",
        communicator_.size(), device_.backend->description().c_str(),
        static_cast<long long>(options_.sequences), static_cast<long long>(options_.prompt_tokens),
        static_cast<long long>(options_.tokens), drafter_name(executor_.default_drafter()).c_str(),
        static_cast<double>(executor_.weight_bytes()) / 1e6,
        static_cast<double>(executor_.draft_weight_bytes()) / 1e6, device_.gpu ? "copies" : "reads",
        bandwidth_ / 1e9);
    std::printf(
        "| K | steps | tokens/s | tokens a step | drafted a step | step P50, ms | P90 | P99 |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (const Arm& arm : arms_) {
      const auto steps = static_cast<double>(arm.steps.size());
      std::printf("| %d | %zu | %.1f | %.2f | %.2f | %.3f | %.3f | %.3f |\n", arm.num_draft_tokens,
                  arm.steps.size(), static_cast<double>(arm.tokens) / arm.seconds,
                  static_cast<double>(arm.tokens) / steps, static_cast<double>(arm.drafted) / steps,
                  1e3 * arm.quantile(500), 1e3 * arm.quantile(900), 1e3 * arm.quantile(990));
    }
    for (const Arm& arm : arms_) print_profile(arm);
    if (arms_.size() == 1) return;
    const Speedup of = speedup(arms_.back(), arms_.front(), options_.sequences);
    std::printf(
        "\nK = %d: c = %.3f, alpha = %.3f; %.2f times as fast as plain steps, of %.2f where a "
        "verified step took as long as a plain one (%.1f %%)\n",
        arms_.back().num_draft_tokens, of.draft_cost, arms_.back().alpha, of.measured, of.ideal,
        100 * of.measured / of.ideal);
  }

  void write_json() const {
    std::vector<Measurement> all;
    for (const Arm& arm : arms_) {
      const std::string k = "/k:" + std::to_string(arm.num_draft_tokens);
      const auto steps = static_cast<double>(arm.steps.size());
      const auto count = static_cast<int64_t>(arm.steps.size());
      all.push_back(
          {.name = "serve/step" + k,
           .seconds = arm.quantile(500),
           .samples = count,
           .counters = {{"tokens_per_second", static_cast<double>(arm.tokens) / arm.seconds},
                        {"tokens_per_step", static_cast<double>(arm.tokens) / steps},
                        {"drafted_per_step", static_cast<double>(arm.drafted) / steps},
                        {"p90_us", 1e6 * arm.quantile(900)},
                        {"p99_us", 1e6 * arm.quantile(990)},
                        {"profile_us", 1e6 * sum(arm.profile())},
                        {"ideal_us", 1e6 * sum(arm.ideal)}}});
      if (arm.num_draft_tokens > 0) {
        const Speedup of = speedup(arm, arms_.front(), options_.sequences);
        auto& counters = all.back().counters;
        counters["alpha"] = arm.alpha;
        counters["draft_cost"] = of.draft_cost;
        counters["ideal_speedup"] = of.ideal;
        counters["speedup"] = of.measured;
      }
      const Parts profile = arm.profile();
      for (int p = 0; p < kNumParts; ++p) {
        if (!is_measured(p)) continue;
        all.push_back({.name = std::string("serve/") + kPartNames[p] + k,
                       .seconds = profile[p],
                       .samples = count,
                       .counters = {{"ideal_us", 1e6 * arm.ideal[p]}}});
      }
    }
    write_bench_report(*options_.json,
                       {{"model", options_.engine.model.filename().string()},
                        {"device", device_.name},
                        {"backend", device_.backend->description()},
                        {"drafter", drafter_name(executor_.default_drafter())},
                        {"ranks", std::to_string(communicator_.size())},
                        {"sequences", std::to_string(options_.sequences)},
                        {"memory_bytes_per_second", std::to_string(bandwidth_)}},
                       all);
  }

 private:
  // On a GPU nobody waits for a sum: it is a part of the target's time.
  bool is_measured(int part) const { return part != kSums || !device_.gpu; }

  void print_profile(const Arm& arm) const {
    std::printf(
        "\nA step at K = %d:\n\n| part | us | ideal, us | gap, us | of the step |\n"
        "| --- | --- | --- | --- | --- |\n",
        arm.num_draft_tokens);
    const Parts profile = arm.profile();
    const double step = sum(profile);
    const auto row = [step](const char* name, double measured, double ideal) {
      std::printf("| %s | %.1f | %.1f | %.1f | %.1f %% |\n", name, 1e6 * measured, 1e6 * ideal,
                  1e6 * (measured - ideal), 100 * (measured - ideal) / step);
    };
    for (int p = 0; p < kNumParts; ++p) {
      if (is_measured(p)) row(kPartNames[p], profile[p], arm.ideal[p]);
    }
    row("step", step, sum(arm.ideal));
  }

  const ServeBenchOptions& options_;
  const BenchDevice& device_;
  TimedCommunicator& communicator_;
  Executor& executor_;
  double bandwidth_ = 0;
  std::vector<Arm> arms_;
};

// Ranks that call it together measure what each gets.
double measure_bandwidth(const ServeBenchOptions& options, BenchDevice& device,
                         Communicator& communicator) {
  if (device.gpu) return measure_copy_bandwidth(device, options.copy_bytes, 7);
  Stream stream;
  float meeting = 0;
  communicator.all_reduce_sum(TensorView(&meeting, DType::f32, {1, 1}), stream);
  return measure_read_bandwidth();
}

}  // namespace

void run_serve_bench(const ServeBenchOptions& options, BenchDevice& device,
                     Communicator& communicator, ControlServer* server, ControlClient* client) {
  if (communicator.rank() == 0) check_bench_report(options.json);
  set_float_environment();
  const double before = measure_bandwidth(options, device, communicator);
  TimedCommunicator timed(communicator);
  Executor executor(options.engine, *device.backend, device.gpu ? communicator : timed);
  // A host that others use too may be slower at one moment than at another: the better counts. A
  // GPU's memory is taken by now.
  const auto best_bandwidth = [&] {
    return device.gpu ? before : std::max(before, measure_bandwidth(options, device, communicator));
  };
  if (client != nullptr) {
    run_follower(executor, *client);
    best_bandwidth();
    return;
  }
  ServeBench bench(options, device, timed, executor);
  bench.run(server);
  if (server != nullptr) server->goodbye();
  bench.set_bandwidth(best_bandwidth());
  bench.print();
  if (options.json) bench.write_json();
}

}  // namespace outrider
