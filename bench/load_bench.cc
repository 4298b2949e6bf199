#include "bench/load_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <utility>

#include "bench/bench_report.h"
#include "core/error.h"
#include "core/float_environment.h"
#include "engine/engine.h"

namespace outrider {
namespace {

constexpr double kWarmUp = 0.05;  // of a round's requests, which are not counted
constexpr int kDraws = 400;       // of rounds, for an interval

using Quantity = double (SimulatedAnswer::*)() const;
constexpr std::array<Quantity, 3> kQuantities = {&SimulatedAnswer::time_to_first,
                                                 &SimulatedAnswer::time_per_token,
                                                 &SimulatedAnswer::end_to_end};
constexpr const char* kNames[] = {"ttft", "tpot", "e2e"};

// [rounds], each of one quantity of its answers.
using Rounds = std::vector<std::vector<double>>;

double percentile(std::vector<double> values, double p) {
  const auto rank = static_cast<int64_t>(std::ceil(p * static_cast<double>(values.size())));
  const auto at = values.begin() + std::max<int64_t>(rank - 1, 0);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<double> joined(const Rounds& rounds, const std::vector<size_t>& which) {
  std::vector<double> all;
  for (const size_t i : which) all.insert(all.end(), rounds[i].begin(), rounds[i].end());
  return all;
}

struct Ratio {
  double value, low, high;  // and the 95 % interval
};

// Of the P99s of all rounds; the interval is a bootstrap's over rounds, which the arms share.
Ratio p99_ratio(const Rounds& adaptive, const Rounds& plain) {
  const auto ratio = [&](const std::vector<size_t>& which) {
    return percentile(joined(adaptive, which), 0.99) / percentile(joined(plain, which), 0.99);
  };
  std::vector<size_t> which(plain.size());
  for (size_t i = 0; i < which.size(); ++i) which[i] = i;
  const double value = ratio(which);
  std::mt19937_64 random(1);
  std::vector<double> drawn;
  for (int draw = 0; draw < kDraws; ++draw) {
    for (size_t& i : which) i = random() % plain.size();
    drawn.push_back(ratio(which));
  }
  return {value, percentile(drawn, 0.025), percentile(drawn, 0.975)};
}

struct Arm {
  std::array<Rounds, kQuantities.size()> rounds;
  double tokens = 0, seconds = 0;

  void add(const std::vector<SimulatedAnswer>& answers) {
    const auto first = static_cast<int64_t>(kWarmUp * static_cast<double>(answers.size()));
    double end = 0;
    for (const SimulatedAnswer& answer : answers) {
      tokens += answer.tokens;
      end = std::max(end, answer.end);
    }
    seconds += end;
    for (size_t q = 0; q < kQuantities.size(); ++q) {
      std::vector<double>& values = rounds[q].emplace_back();
      for (auto answer = answers.begin() + first; answer != answers.end(); ++answer) {
        values.push_back(((*answer).*kQuantities[q])());
      }
    }
  }

  double ms(size_t quantity, double p) const {
    std::vector<double> all;
    for (const auto& round : rounds[quantity]) all.insert(all.end(), round.begin(), round.end());
    return 1e3 * percentile(std::move(all), p);
  }
};

std::string title(const SimulatedLoad& load) {
  char text[32];
  std::snprintf(text, sizeof text, load.users > 0 ? "%.0f users" : "%g/s",
                load.users > 0 ? load.users : load.rate);
  return text;
}

void check_room(const LoadBenchOptions& options, const Executor& executor) {
  const int64_t longest = options.load.prompt_tokens.second + options.load.tokens.second;
  if (longest > executor.max_positions()) {
    throw Error("bench load: a prompt and its answer have " + std::to_string(longest) +
                " tokens at most; expected no more than the model's " +
                std::to_string(executor.max_positions()));
  }
}

}  // namespace

void run_load_bench(const LoadBenchOptions& options, BenchDevice& device,
                    Communicator& communicator) {
  if (communicator.rank() == 0) check_bench_report(options.json);
  set_float_environment();
  const Executor executor(options.engine, *device.backend, communicator);
  if (communicator.rank() != 0) return;
  check_room(options, executor);
  const SimulatedServer server = {.limits = scheduler_limits(executor),
                                  .tables = executor.tables(),
                                  .drafter = executor.default_drafter(),
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
        arms[speculates].add(simulate(server, load, speculates, round + 1));
      }
    }
    for (const bool speculates : {false, true}) {
      const Arm& arm = arms[speculates];
      std::printf("| %s | %s | %.1f | %.1f | %.1f | %.2f | %.2f | %.1f |", title(load).c_str(),
                  speculates ? "adaptive" : "plain", arm.tokens / arm.seconds, arm.ms(0, 0.5),
                  arm.ms(0, 0.99), arm.ms(1, 0.5), arm.ms(1, 0.99), arm.ms(2, 0.99));
      for (size_t q = 0; q < kQuantities.size(); ++q) {
        if (!speculates) {
          std::printf("  |");
          continue;
        }
        const Ratio ratio = p99_ratio(arm.rounds[q], arms[false].rounds[q]);
        std::printf(" %.3f (%.3f, %.3f) |", ratio.value, ratio.low, ratio.high);
        all.push_back({.name = "load/" + title(load) + "/" + kNames[q],
                       .seconds = arm.ms(q, 0.99) / 1e3,
                       .samples = static_cast<int64_t>(options.rounds) * load.requests,
                       .counters = {{"to_plain", ratio.value},
                                    {"to_plain_low", ratio.low},
                                    {"to_plain_high", ratio.high}}});
      }
      std::printf("\n");
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
