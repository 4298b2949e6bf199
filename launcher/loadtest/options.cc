// See options.h.
#include "launcher/loadtest/options.h"

#include <absl/strings/str_format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "launcher/command_line.h"
#include "launcher/loadtest/output_file.h"
#include "launcher/number_checks.h"

namespace outrider {
namespace {

constexpr double kDefaultDurationS = 30;
constexpr double kMaxArrivals = 1e7;  // they are drawn, and kept, before the test begins
constexpr double kDefaultTimeoutS = 600;
// A sweep goes on until the server is saturated, and then all that waits there is waited for.
constexpr double kDefaultSweepTimeoutS = 60;

// A flag whose text `parse` reads into `value`; what it throws is what is wrong with the flag.
template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, Value& value, Parse parse,
                        const std::string& description) {
  return command.add_option_function<std::string>(
      name,
      [name, &value, parse](const std::string& text) {
        try {
          value = parse(text);
        } catch (const Error& error) {
          throw CLI::ValidationError(name, error.what());
        }
      },
      description);
}

LengthDistribution read_lengths(const std::string& text) {
  if (const auto lengths = parse_length_distribution(text)) return *lengths;
  throw Error(text + ": expected " + kLengthDistributionForms);
}

void add_load(CLI::App& command, LoadtestOptions& options) {
  auto* concurrency =
      command.add_option("--concurrency", options.concurrency,
                         "Closed loop: so many users, each asks again when answered");
  concurrency->check(CLI::Range(1, kMostUsers));
  auto* rate =
      command.add_option("--rate", options.rate, "Open loop: so many requests a second (Poisson)");
  rate->check(number_within(kLeastRate, kMostRate))->excludes(concurrency);
  auto* trace = command.add_option("--trace", options.trace,
                                   "Open loop: JSON lines with \"timestamp\" and \"text\" or "
                                   "\"input_length\" (with \"hash_ids\": blocks of equal ids "
                                   "are equal), sent again as they came");
  trace->excludes(concurrency)->excludes(rate)->check(not_empty("a file"));
  auto* sweep = add_parsed(command, "--sweep", options.sweep, parse_sweep,
                           "One load after the other until the server is saturated: rate=1,2,4 "
                           "or users=1,2,4");
  sweep->excludes(concurrency)->excludes(rate)->excludes(trace);
  auto* compare = add_parsed(command, "--compare", options.arms, parse_arms,
                             "The load, or each of --sweep, with so many speculative tokens "
                             "each, in turns: K=0,4,adaptive");
  compare->excludes(command.get_option("--num-speculative-tokens"));
  command
      .add_option("--rounds", options.rounds,
                  "Turns of each arm of --compare at each load (default 16)")
      ->check(CLI::Range(1, 1'000'000))
      ->needs(compare);
}

void add_extent(CLI::App& command, LoadtestOptions& options) {
  const CLI::Validator seconds = number_within(0, 1e7), some_seconds = number_within(0.001, 1e7);
  auto* duration = command.add_option(
      "--duration", options.duration_s,
      "Send for so many seconds (default 30; a trace: all of it); of each load of a sweep, "
      "and of each turn of a comparison");
  duration->check(some_seconds);
  command.add_option("--requests", options.requests, "Send so many requests instead")
      ->check(CLI::Range(int64_t{1}, static_cast<int64_t>(kMaxArrivals)))
      ->excludes(duration);
  command
      .add_option("--warmup", options.warmup_s,
                  "Leave the first so many seconds of each load out of the report (default 0)")
      ->check(seconds);
  command
      .add_option("--timeout", options.timeout_s,
                  "Give up on an answer after so many seconds (default 600; in a sweep 60)")
      ->check(some_seconds);
  command
      .add_option("--wait-for-ready", options.wait_for_ready_s,
                  "Wait so many seconds for a server that is not there yet")
      ->check(seconds);
  command
      .add_option("--report-every", options.progress_every_s,
                  "Seconds between lines of progress (default 10; 0: none)")
      ->check(seconds);
}

void add_questions(CLI::App& command, LoadtestOptions& options) {
  command.add_option("--seed", options.seed,
                     "Of arrivals, prompts, lengths, sampling and intervals (default 0)");
  auto* prompts = command.add_option(
      "--prompts", options.prompts, "A file of JSON lines with \"text\" (default: a built-in set)");
  prompts->excludes(command.get_option("--trace"))->check(not_empty("a file"));
  add_parsed(command, "--prompt-length", options.prompt_length, read_lengths,
             "Prompts of random tokens instead: fixed:N, uniform:A:B or "
             "lognormal:MEDIAN:SIGMA:MOST")
      ->excludes(prompts)
      ->excludes(command.get_option("--trace"));
  add_parsed(command, "--output-length", options.output_length, read_lengths,
             "max_tokens: fixed:N, uniform:A:B or lognormal:MEDIAN:SIGMA:MOST (default fixed:64)")
      ->excludes(command.get_option("--max-tokens"));
}

}  // namespace

void LoadtestOptions::add_to(CLI::App& command) {
  server.add_to(command);
  request.add_parameters_to(command);
  command.get_option("--max-tokens")->description("The same as --output-length fixed:N");
  command.get_option("--n")->description("Answers to a prompt: 1, since a stream is timed as one");
  add_load(command, *this);
  add_extent(command, *this);
  add_questions(command, *this);
  add_parsed(command, "--slo", objectives, parse_objectives,
             "Count the answers that keep these objectives: ttft=500ms,tpot=30ms,e2e=2s");
  const CLI::Validator file = not_empty("a file");
  command.add_option("--json", json, "Write the report to this file")->check(file);
  command.add_option("--html", html, "Write the report as a page with plots to this file")
      ->check(file);
  command
      .add_option("--samples", samples,
                  "Write what was recorded of each request to this file, as JSON lines")
      ->check(file);
}

void LoadtestOptions::check_together() const {
  if (!rate && !concurrency && trace.empty() && !sweep) {
    throw CLI::RequiredError("One of --concurrency, --rate, --trace and --sweep");
  }
  // Their chunks come mixed, and would be taken for one answer's.
  if (const int n = request.parameters().sampling_params().n(); n > 1) {
    throw CLI::ValidationError("--n", absl::StrFormat("is %d; expected 1: a load test asks for "
                                                      "one answer to each prompt",
                                                      n));
  }
  const std::pair<const char*, const std::string&> files[] = {
      {"--json", json}, {"--html", html}, {"--samples", samples}};
  for (const auto& [flag, path] : files) {
    for (const auto& [other, same] : files) {
      if (flag == other || path.empty() || same.empty() || !is_same_file(path, same)) continue;
      throw CLI::ValidationError(absl::StrFormat("%s and %s", flag, other),
                                 "expected two files, found one, " + path);
    }
  }
  if (sweep) {
    for (const double value : sweep->values) at(value).check_together();
    return;
  }
  if (rate && *rate * duration() > kMaxArrivals &&
      static_cast<double>(max_requests()) > kMaxArrivals) {
    throw CLI::ValidationError("--rate", absl::StrFormat("%g requests/s for %g s are more than %g",
                                                         *rate, duration(), kMaxArrivals));
  }
  if (warmup_s >= duration()) {
    throw CLI::ValidationError(
        "--warmup", absl::StrFormat("%g s leave nothing of a test of %g s", warmup_s, duration()));
  }
}

double LoadtestOptions::duration() const {
  if (duration_s) return *duration_s;
  return requests || !trace.empty() ? LoadPlan().duration_s : kDefaultDurationS;
}

double LoadtestOptions::timeout() const {
  return timeout_s.value_or(sweep ? kDefaultSweepTimeoutS : kDefaultTimeoutS);
}

LengthDistribution LoadtestOptions::output_lengths() const {
  if (output_length) return *output_length;
  const v1::SamplingParams sampling = request.parameters().sampling_params();
  return sampling.has_max_tokens() ? LengthDistribution::fixed(sampling.max_tokens())
                                   : LengthDistribution();
}

LoadPlan LoadtestOptions::plan(const std::vector<TraceEntry>& entries, int round) const {
  if (concurrency) return closed_loop(*concurrency, duration(), max_requests());
  if (rate) {
    return open_loop(*rate, duration(), max_requests(), seed, static_cast<uint64_t>(round));
  }
  std::vector<double> due_s;
  for (const TraceEntry& entry : entries) due_s.push_back(entry.due_s);
  return replay(due_s, duration(), max_requests());
}

LoadtestOptions LoadtestOptions::at(double sweep_value) const {
  LoadtestOptions options = *this;
  options.timeout_s = timeout();
  options.sweep.reset();
  if (sweep->variable == SweepValues::Variable::rate) {
    options.rate = sweep_value;
  } else {
    options.concurrency = static_cast<int>(sweep_value);
  }
  return options;
}

}  // namespace outrider
