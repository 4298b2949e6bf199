// `outrider loadtest`: asks a running server as many users would, and says how long they waited.
#include <absl/strings/str_format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "launcher/command_line.h"
#include "launcher/loadtest/comparison.h"
#include "launcher/loadtest/connections.h"
#include "launcher/loadtest/greedy_check.h"
#include "launcher/loadtest/load_generator.h"
#include "launcher/loadtest/load_runner.h"
#include "launcher/loadtest/options.h"
#include "launcher/loadtest/output_file.h"
#include "launcher/loadtest/pages.h"
#include "launcher/loadtest/prompts.h"
#include "launcher/loadtest/questions.h"
#include "launcher/loadtest/report.h"
#include "launcher/loadtest/server_state.h"
#include "launcher/loadtest/settings.h"
#include "launcher/loadtest/sweep.h"
#include "launcher/stop_signals.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr float kGreedyBelow = 1e-5f;  // as the schema says of temperature

struct OutputFiles {
  OutputFile json, html, samples;

  // All of them, before the first error is thrown.
  void close() {
    std::exception_ptr error;
    for (OutputFile* file : {&json, &html, &samples}) {
      try {
        file->close();
      } catch (const Error&) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }
};

// indent: -1: on one line.
std::string to_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

QuestionSource question_source(const LoadtestOptions& options) {
  QuestionSource source{.prompt_length = options.prompt_length,
                        .output_length = options.output_lengths()};
  if (!options.trace.empty()) {
    source.trace = read_trace(options.trace);
  } else if (!options.prompt_length) {
    source.prompts = options.prompts.empty() ? builtin_prompts() : read_prompts(options.prompts);
  }
  return source;
}

// Whether all answers to a prompt are to be the same.
bool is_greedy(const v1::GenerateRequest& request) {
  return request.sampling_params().has_temperature() &&
         request.sampling_params().temperature() < kGreedyBelow &&
         (!request.speculation().has_lenience() || request.speculation().lenience() == 1);
}

Json to_json(const GreedyCheck& check) {
  Json differences = Json::array();
  for (const GreedyDifference& difference : check.differences) {
    differences.push_back({{"prompt", difference.prompt},
                           {"request", difference.request},
                           {"other", difference.other},
                           {"position", difference.position}});
  }
  return {{"num_compared", check.num_compared}, {"differences", std::move(differences)}};
}

constexpr char kVoid[] = "the test is void", kServerFailed[] = "the server failed";

// name: of the load, where there are several.
std::string failure(const std::string& name, const char* what, const LoadReport& report,
                    bool gave_up) {
  std::string why =
      absl::StrFormat("%s%s: %d of %d requests succeeded", name.empty() ? "" : name + ": ", what,
                      report.answers(), report.requests);
  if (report.requests == 0 && report.warmup_requests > 0) {
    absl::StrAppendFormat(&why, ", %d of %d in the warm-up",
                          report.warmup_requests - report.warmup_errors, report.warmup_requests);
  }
  if (gave_up) why += ", and sending was given up";
  for (const auto& [code, message] : report.first_error_by_code) {
    why += "; " + code + ": " + message;
  }
  return why;
}

void throw_if_different(const std::optional<GreedyCheck>& greedy) {
  if (!greedy || greedy->differences.empty()) return;
  const GreedyDifference& first = greedy->differences.front();
  throw Error(absl::StrFormat(
      "%d of %d greedy answers differ from another one to the same prompt; the first: request %d "
      "from request %d (prompt %d) at token %d",
      greedy->differences.size(), greedy->num_compared, first.request, first.other, first.prompt,
      first.position));
}

// One invocation: its server, what it asks, what it writes.
class Loadtest {
 public:
  Loadtest(const LoadtestOptions& options, StopSignals& signals)
      : options_(options),
        source_(question_source(options)),
        connections_(options.server),
        stub_(v1::GenerationService::NewStub(connections_.first())),
        server_(server_at_first(connections_.first(), *stub_, options.server,
                                options.wait_for_ready_s)),
        model_(ask_model_info(*stub_)),
        files_{OutputFile(options.json), OutputFile(options.html), OutputFile(options.samples)},
        runner_(options, connections_, signals) {
    for (const Arm& arm : options.arms) {
      if (arm.num_speculative_tokens || server_.lookahead() == "adaptive") continue;
      throw Error("--compare K=adaptive: the server's lookahead is " + server_.lookahead() +
                  "; expected one that was started with --lookahead adaptive");
    }
    source_.vocab_size = model_.vocab_size();
    print(first_line(options, server_) + "\n");
  }

  void run_load() {
    Questions questions(source_, options_.seed);
    const LoadResult load = runner_.run(options_.plan(source_.trace), questions);
    keep("", load);
    const LoadReport report = make_report({load}, options_.report());
    print(to_table(report));
    Json json = to_json(report);
    json["gave_up"] = load.gave_up;
    std::optional<std::string> failed;
    if (!report.valid() || load.gave_up) {
      failed = failure("", kVoid, report, load.gave_up);
    } else if (server_failed({load}, options_.warmup_s)) {
      failed = failure("", kServerFailed, report, load.gave_up);
    }
    finish("Load test of Outrider", std::move(json), failed,
           [&](const PageFrame& frame) { return load_page(frame, load, report); });
  }

  // A sweep, a comparison, or a comparison at each load of a sweep.
  void run_steps() {
    const std::optional<SweepValues>& sweep = options_.sweep;
    std::vector<std::optional<Arm>> arms(options_.arms.begin(), options_.arms.end());
    const bool compared = !arms.empty();
    if (!compared) arms.emplace_back();
    std::vector<SweepStep> steps;
    print(load_table_head(options_.objectives.any()));
    for (const double value : sweep ? sweep->values : std::vector<double>{0}) {
      steps.push_back(run_step(value, arms));
      const SweepStep& step = steps.back();
      for (const ArmResult& arm : step.arms) {
        print(load_table_row(run_name(step.name, arm.name()), arm.report) +
              error_lines(arm.report));
        if (arm.saturated) std::erase(arms, arm.arm);
      }
      if (arms.empty() || has_ended(step) || runner_.stopped()) break;
    }
    if (has_survivors(steps)) print(survivors_line());
    if (sweep) {
      for (const std::string& verdict : verdicts(*sweep, steps)) print(verdict + "\n");
    }
    if (compared) {
      print("\n" + ratio_table_head());
      for (const SweepStep& step : steps) print(ratio_table_rows(step.name, step.arms));
    }
    const Json json = sweep ? Json{{"sweep", to_json(*sweep, steps)}}
                            : Json{{"compare", to_json(steps.front().arms)}};
    finish(std::string(sweep ? "Load sweep of Outrider" : "Outrider") +
               (compared ? " with and without speculation" : ""),
           json, failure_of(steps),
           [&](const PageFrame& frame) { return steps_page(frame, sweep, steps); });
  }

 private:
  // One load. value: of the sweep, if there is one.
  SweepStep run_step(double value, const std::vector<std::optional<Arm>>& arms) {
    const bool sweep = options_.sweep.has_value();
    SweepStep step{.value = value, .name = sweep ? options_.sweep->name(value) : "", .arms = {}};
    for (const std::optional<Arm>& arm : arms) step.arms.push_back({.arm = arm});
    ask_in_turns(sweep ? options_.at(value) : options_, step);
    evaluate(step.arms, options_.report());
    for (ArmResult& arm : step.arms) {
      arm.failed |= server_failed(arm.loads, options_.warmup_s);
      // Without a sweep there is nothing to learn from overload, and a ratio would be of survivors.
      if (!sweep && arm.arm) arm.failed |= has_lost_too_many(arm.report);
      arm.saturated =
          sweep && !arm.failed && !runner_.stopped() && is_saturated(arm.loads, options_.warmup_s);
    }
    return step;
  }

  // Whether there is no sense in asking anything more.
  static bool has_ended(const SweepStep& step) {
    return std::ranges::any_of(step.arms,
                               [](const ArmResult& arm) { return arm.failed || arm.gave_up(); });
  }

  // A sweep that gave up may have saturated its server, which is void of its first load alone.
  std::optional<std::string> failure_of(const std::vector<SweepStep>& steps) {
    for (const SweepStep& step : steps) {
      const bool gave_up = std::ranges::any_of(step.arms, &ArmResult::gave_up);  // on all arms
      for (const ArmResult& arm : step.arms) {
        const bool first = &step == &steps.front();
        const bool unmeasured =
            arm.report.requests == 0 && !arm.saturated && !arm.failed && !runner_.stopped();
        const bool is_void = (first && !arm.report.valid()) || unmeasured;
        const bool ended = arm.failed || (!options_.sweep && arm.gave_up());
        if (!is_void && !ended) continue;
        return failure(run_name(step.name, arm.name()),
                       is_void || !options_.sweep ? kVoid : kServerFailed, arm.report, gave_up);
      }
    }
    return std::nullopt;
  }

  // All rounds, or those until nothing is answered any more. options: with this step's load.
  void ask_in_turns(const LoadtestOptions& options, SweepStep& step) {
    std::vector<ArmResult>& arms = step.arms;
    Questions questions(source_, options.seed);
    int64_t first_question = 0;
    const int rounds = arms.front().arm ? options.rounds : 1;
    for (int round = 0; round < rounds && !runner_.stopped(); ++round) {
      if (!source_.trace.empty()) questions = Questions(source_, options.seed);  // it is one round
      const Questions at_start = questions;
      size_t most_asked = 0;
      for (const size_t i : turns(arms.size(), round)) {
        Questions same = at_start;
        LoadResult load =
            runner_.run(options.plan(source_.trace, round), same,
                        arms[i].arm ? arms[i].arm->num_speculative_tokens : std::nullopt);
        for (RequestRecord& record : load.records) record.question += first_question;
        const std::string name = run_name(step.name, arms[i].name());
        keep(arms[i].arm ? absl::StrFormat("%s, round %d", name, round) : name, load);
        if (load.records.size() >= most_asked) {
          most_asked = load.records.size();
          questions = same;
        }
        arms[i].loads.push_back(std::move(load));
        if (nothing_succeeds()) arms[i].failed = arms[i].loads.back().gave_up = true;
        if (arms[i].gave_up()) {
          std::erase_if(arms, [](const ArmResult& arm) { return arm.loads.empty(); });
          return;
        }
      }
      first_question += static_cast<int64_t>(most_asked);
    }
  }

  // As of a load that is given up, over short loads and at the end of a long one.
  bool nothing_succeeds() const {
    const auto failed = [](const RequestRecord& record) {
      return !record.ok() && !record.cancelled && !record.overloaded();
    };
    return std::ssize(records_) >= kGiveUpAfter &&
           std::all_of(records_.end() - kGiveUpAfter, records_.end(), failed);
  }

  // run: its name, where there are several.
  void keep(const std::string& run, const LoadResult& load) {
    for (const RequestRecord& record : load.records) {
      records_.push_back(record);
      if (options_.samples.empty()) continue;
      Json json = to_json(record);
      if (!run.empty()) json["run"] = run;
      files_.samples.write(to_text(json, -1));
    }
  }

  // Checks greedy answers against each other and writes what every report has; then throws where
  // the test failed. page: makes it from its frame.
  template <typename MakePage>
  void finish(const std::string& title, Json json, const std::optional<std::string>& failed,
              MakePage page) {
    PageFrame frame{.title = title,
                    .about = first_line(options_, server_),
                    .facts = settings_facts(options_, source_, server_, model_),
                    .warnings = {},
                    .warmup_s = options_.warmup_s};
    if (failed) frame.warnings.push_back(*failed);
    if (is_greedy(options_.request.parameters())) {
      greedy_ = check_greedy(records_);
      const std::string text =
          absl::StrFormat("%d answers compared with another to the same prompt, %d differ",
                          greedy_->num_compared, greedy_->differences.size());
      print("greedy: " + text + "\n");
      frame.facts.push_back({"greedy", text});
      if (!greedy_->differences.empty()) frame.warnings.push_back("Greedy answers differ: " + text);
    }
    if (runner_.stopped()) {
      constexpr char kInterrupted[] = "The test was interrupted.";
      print(std::string(kInterrupted) + "\n");
      frame.warnings.push_back(kInterrupted);
    }
    json["failure"] = failed ? Json(*failed) : Json(nullptr);
    json["greedy"] = greedy_ ? to_json(*greedy_) : Json(nullptr);
    json["interrupted"] = runner_.stopped();
    json["date"] = date();
    json["settings"] = settings_json(options_, source_);
    json["server"] = server_json(server_, model_);
    json["server_afterwards"] = server_afterwards(*stub_);
    files_.json.write(to_text(json, 2));
    if (!options_.html.empty()) files_.html.write(page(frame));
    files_.close();
    if (failed) throw Error(*failed);
    throw_if_different(greedy_);
  }

  const LoadtestOptions& options_;
  QuestionSource source_;
  Connections connections_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  v1::GetServerInfoResponse server_;
  v1::GetModelInfoResponse model_;
  OutputFiles files_;  // behind what may wait: Ctrl-C ends that at once, and would leave them
  LoadRunner runner_;
  std::vector<RequestRecord> records_;  // of all loads
  std::optional<GreedyCheck> greedy_;
};

int loadtest(const LoadtestOptions& options) {
  StopSignals signals(false);
  Loadtest test(options, signals);
  if (options.sweep || !options.arms.empty()) {
    test.run_steps();
  } else {
    test.run_load();
  }
  return 0;
}

}  // namespace

void add_loadtest_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<LoadtestOptions>();
  CLI::App* command = app.add_subcommand("loadtest", "Measure a running server under load");
  options->add_to(*command);
  command->callback([options, &action] {
    options->check_together();
    action = [options] { return loadtest(*options); };
  });
}

}  // namespace outrider
