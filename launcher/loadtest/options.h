// LoadtestOptions: what `outrider loadtest` was asked to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/client.h"
#include "launcher/loadtest/comparison.h"
#include "launcher/loadtest/latency.h"
#include "launcher/loadtest/length_distribution.h"
#include "launcher/loadtest/load_generator.h"
#include "launcher/loadtest/load_plan.h"
#include "launcher/loadtest/report.h"
#include "launcher/loadtest/sweep.h"
#include "launcher/loadtest/trace.h"
#include "launcher/request_flags.h"

namespace CLI {
class App;
}  // namespace CLI

namespace outrider {

struct LoadtestOptions {
  ServerAddress server;
  double wait_for_ready_s = 0;

  // The load: exactly one of these four.
  std::optional<int> concurrency;
  std::optional<double> rate;
  std::string trace;  // a file
  std::optional<SweepValues> sweep;
  std::vector<Arm> arms;  // of a comparison, at each load; empty: none
  int rounds = 16;

  std::optional<double> duration_s;
  std::optional<int64_t> requests;
  double warmup_s = 0;
  std::optional<double> timeout_s;
  double progress_every_s = 10;
  uint64_t seed = 0;

  std::string prompts;  // a file; empty: the built-in ones
  std::optional<LengthDistribution> prompt_length, output_length;
  RequestFlags request;

  Objectives objectives;
  std::string json, html, samples;  // files

  void add_to(CLI::App& command);
  // What no single flag can know. Throws CLI::ParseError.
  void check_together() const;

  // Infinite where a number of requests, or a trace, says when sending ends.
  double duration() const;
  int64_t max_requests() const { return requests.value_or(LoadPlan().max_requests); }
  double timeout() const;
  LengthDistribution output_lengths() const;
  ReportOptions report() const { return {warmup_s, objectives, seed}; }

  // One load. round: 0, 1, … of a comparison.
  LoadPlan plan(const std::vector<TraceEntry>& trace, int round = 0) const;
  // The same with one load of a sweep.
  LoadtestOptions at(double sweep_value) const;
};

}  // namespace outrider
