#include "bench/load_bench.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <string>

#include "bench/bench_report.h"
#include "bench/statistics.h"
#include "core/error.h"
#include "core/float_environment.h"
#include "engine/engine.h"

namespace outrider {
namespace {

constexpr double kWarmUp = 0.05;  // of a round's requests, which are not counted

struct Quantity {
  const char* name;
  double (SimulatedAnswer::*of)() const;  // seconds
};
constexpr Quantity kQuantities[] = {{"ttft", &SimulatedAnswer::time_to_first},
                                    {"tpot", &SimulatedAnswer::time_per_token},
                                    {"e2e", &SimulatedAnswer::end_to_end}};
constexpr size_t kNumQuantities = std::size(kQuantities);

struct Arm {
  std::array<Samples, kNumQuantities> samples;  // by round
  double tokens = 0, seconds = 0;

  void add(const std::vector<SimulatedAnswer>& answers, int round) {
    double end = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      tokens += answers[i].tokens;
      end = std::max(end, answers[i].end);
      if (static_cast<double>(i) < kWarmUp * static_cast<double>(answers.size())) continue;
      for (size_t q = 0; q < kNumQuantities; ++q) {
        samples[q].add((answers[i].*kQuantities[q].of)(), round);
      }
    }
    seconds += end;
  }
};

std::string title(const SimulatedLoad& load) {
  char text[32];
  std::snprintf(text, sizeof text, load.users > 0 ? "users:%g" : "rate:%g",
                load.users > 0 ? load.users : load.rate);
  return text;
}

void check(const LoadBenchOptions& options, const Executor& executor) {
  const int64_t longest = options.load.prompt_tokens.second + options.load.tokens.second;
  if (longest > executor.max_positions()) {
    throw Error("bench load: a prompt and its answer have " + std::to_string(longest) +
                " tokens at most; expected no more than the model's " +
                std::to_string(executor.max_positions()));
  }
  const DrafterKind drafter = executor.default_drafter();
  if (!can_simulate(drafter)) {
    throw Error("bench load: --drafter is " + drafter_name(drafter) +
                "; expected one that has no cache and copies nothing, as head (--draft-head)");
  }
  const auto most = static_cast<int>(kWarmUp * options.load.requests);
  for (const int users : options.users) {
    if (users > most) {
      throw Error("bench load: --users is " + std::to_string(users) + "; expected at most " +
                  std::to_string(most) + ", a twentieth of --requests, which warms up");
    }
  }
}

std::string cell(const Ratios& ratios) {
  char text[64];
  std::snprintf(text, sizeof text, " %.3f (%.3f, %.3f) |", ratios.p99, ratios.ci95->low.p99,
                ratios.ci95->high.p99);
  return text;
}

}  // namespace

void run_load_bench(const LoadBenchOptions& options, BenchDevice& device,
                    Communicator& communicator) {
  if (communicator.rank() == 0) check_bench_report(options.json);
  set_float_environment();
  const Executor executor(options.engine, *device.backend, communicator);
  if (communicator.rank() != 0) return;
  check(options, executor);
  const SimulatedServer server = {.limits = scheduler_limits(executor),
                                  .tables = executor.tables(),
                                  .drafter = executor.default_drafter(),
                                  .max_alternatives = executor.options().max_alternatives,
                                  .noise = options.noise};
  std::vector<SimulatedLoad> loads;
  for (const double rate : options.rates) loads.push_back(options.load), loads.back().rate = rate;
  for (const int users : options.users) loads.push_back(options.load), loads.back().users = users;

  const StepCosts& costs = server.tables.target;
  std::printf(
      "ranks %d, %s, drafter %s; a step of 1, 4, 8 and 16 rows takes %.1f, %.1f, %.1f and %.1f ms; "
      "%d rounds of %d requests\n\n",
      communicator.size(), device.backend->description().c_str(),
      drafter_name(server.drafter).c_str(), costs.decode_ms(1), costs.decode_ms(4),
      costs.decode_ms(8), costs.decode_ms(16), options.rounds, options.load.requests);
  std::printf(
      "| load | arm | tokens/s | TTFT P50, ms | P99 | TPOT P50, ms | P99 | end to end P99, ms | "
      "adaptive / plain, TTFT P99 | TPOT P99 | end to end P99 |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::vector<Measurement> all;
  for (const SimulatedLoad& load : loads) {
    std::array<Arm, 2> arms;
    for (int round = 0; round < options.rounds; ++round) {
      for (const bool speculates : {false, true}) {
        arms[speculates].add(simulate(server, load, speculates, round + 1), round);
      }
    }
    for (const bool speculates : {false, true}) {
      const Arm& arm = arms[speculates];
      const std::string name = speculates ? "adaptive" : "plain";
      std::array<Summary, kNumQuantities> of;
      std::string ratios;
      for (size_t q = 0; q < kNumQuantities; ++q) {
        of[q] = summarise(arm.samples[q], 0);
        Measurement& measured = all.emplace_back();
        measured = {.name = "load/" + title(load) + "/" + name + "/" + kQuantities[q].name,
                    .seconds = of[q].p50,
                    .samples = of[q].count,
                    .counters = {{"p99_us", 1e6 * of[q].p99},
                                 {"tokens_per_second", arm.tokens / arm.seconds}}};
        if (!speculates) {
          ratios += "  |";
          continue;
        }
        const Ratios ratio = *compare(arm.samples[q], arms[false].samples[q], 0);
        ratios += cell(ratio);
        measured.counters["p99_to_plain"] = ratio.p99;
        measured.counters["p99_to_plain_low"] = ratio.ci95->low.p99;
        measured.counters["p99_to_plain_high"] = ratio.ci95->high.p99;
      }
      std::printf("| %s | %s | %.1f | %.1f | %.1f | %.2f | %.2f | %.1f |%s\n", title(load).c_str(),
                  name.c_str(), arm.tokens / arm.seconds, 1e3 * of[0].p50, 1e3 * of[0].p99,
                  1e3 * of[1].p50, 1e3 * of[1].p99, 1e3 * of[2].p99, ratios.c_str());
      std::fflush(stdout);
    }
  }
  if (!options.json) return;
  write_bench_report(*options.json,
                     {{"model", options.engine.model.filename().string()},
                      {"device", device.name},
                      {"backend", device.backend->description()},
                      {"drafter", drafter_name(server.drafter)},
                      {"ranks", std::to_string(communicator.size())}},
                     all);
}

}  // namespace outrider
