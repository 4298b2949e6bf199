// `outrider loadtest`: asks a running server as many users would, and says how long they waited.
#include <absl/strings/str_format.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "core/error.h"
#include "launcher/client.h"
#include "launcher/command_line.h"
#include "launcher/loadtest/greedy_check.h"
#include "launcher/loadtest/load_generator.h"
#include "launcher/loadtest/load_plan.h"
#include "launcher/loadtest/prompts.h"
#include "launcher/loadtest/report.h"
#include "launcher/request_flags.h"
#include "launcher/stop_signals.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr double kDefaultDurationS = 30;
constexpr double kMaxArrivals = 1e7;   // they are drawn, and kept, before the test begins
constexpr float kGreedyBelow = 1e-5f;  // as the schema says of temperature
// One question about the server itself, which may not be there.
constexpr std::chrono::seconds kInfoTimeout{10};
// A server that has just sent the end of an answer may still count it as running.
constexpr milliseconds kSettleTime{2000}, kSettlePause{20};

struct LoadtestOptions {
  ServerAddress server;
  std::optional<int> concurrency;
  std::optional<double> rate;
  std::optional<double> duration_s;
  std::optional<int64_t> requests;
  double warmup_s = 0;
  uint64_t seed = 0;
  std::string prompts;  // a file; empty: the built-in ones
  std::string output_length;
  RequestFlags request;
  double wait_for_ready_s = 0;
  LoadOptions load;
  std::string json, samples;  // files

  bool counts_requests() const { return requests.has_value(); }
  double duration() const {
    return counts_requests() ? LoadPlan().duration_s : duration_s.value_or(kDefaultDurationS);
  }
  int64_t max_requests() const { return requests.value_or(LoadPlan().max_requests); }
};

// Opened before the test begins, so that a wrong path does not cost its result.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.open(path, std::ios::trunc);
    if (!file_) throw Error(path + ": cannot be written");
  }
  void line(const Json& json, int indent = -1) {
    if (path_.empty()) return;
    file_ << json.dump(indent, ' ', false, Json::error_handler_t::replace) << '\n';
  }
  void close() {
    if (path_.empty()) return;
    file_.close();
    if (!file_) throw Error(path_ + ": could not be written whole");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

v1::GetServerInfoResponse server_info(v1::GenerationService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kInfoTimeout);
  v1::GetServerInfoResponse info;
  const grpc::Status status = stub.GetServerInfo(&context, {}, &info);
  if (status.ok()) return info;
  throw Error(std::string(status_name(status.error_code())) + ": " + status.error_message());
}

v1::GetServerInfoResponse wait_for_server(v1::GenerationService::Stub& stub, double wait_s) {
  const auto ready_by = LoadClock::now() + std::chrono::duration<double>(wait_s);
  while (true) {
    try {
      return server_info(stub);
    } catch (const Error&) {
      if (LoadClock::now() >= ready_by) throw;
    }
    std::this_thread::sleep_for(milliseconds(kReconnectMs));
  }
}

// What the server still has to do once all answers are there: nothing, where nobody else asks it.
Json server_afterwards(v1::GenerationService::Stub& stub) {
  const auto settled_by = LoadClock::now() + kSettleTime;
  try {
    while (true) {
      const v1::ServerStats stats = server_info(stub).stats();
      const bool idle = stats.num_requests_running() == 0 && stats.num_requests_waiting() == 0;
      if (idle || LoadClock::now() >= settled_by) {
        return {{"num_requests_running", stats.num_requests_running()},
                {"num_requests_waiting", stats.num_requests_waiting()}};
      }
      std::this_thread::sleep_for(kSettlePause);
    }
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

LoadPlan make_plan(const LoadtestOptions& options) {
  return options.rate
             ? open_loop(*options.rate, options.duration(), options.max_requests(), options.seed)
             : closed_loop(*options.concurrency, options.duration(), options.max_requests());
}

OutputLength output_length(const LoadtestOptions& options, const v1::GenerateRequest& request) {
  if (!options.output_length.empty()) return *parse_output_length(options.output_length);
  if (!request.sampling_params().has_max_tokens()) return {};
  return {request.sampling_params().max_tokens(), request.sampling_params().max_tokens()};
}

bool is_greedy(const v1::GenerateRequest& request) {
  return request.sampling_params().has_temperature() &&
         request.sampling_params().temperature() < kGreedyBelow;
}

// What was measured, so that it can be measured again.
Json settings(const LoadtestOptions& options, const v1::GenerateRequest& parameters,
              OutputLength length, size_t num_prompts) {
  std::string request;
  google::protobuf::util::JsonPrintOptions format;
  format.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(parameters, &request, format);
  CHECK(status.ok());
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  return {{"concurrency", or_null(options.concurrency)},
          {"rate", or_null(options.rate)},
          {"duration_s", options.counts_requests() ? Json(nullptr) : Json(options.duration())},
          {"requests", or_null(options.requests)},
          {"warmup_s", options.warmup_s},
          {"seed", options.seed},
          {"prompts", options.prompts.empty() ? "built-in" : options.prompts},
          {"num_prompts", num_prompts},
          {"output_length", {length.least, length.most}},
          {"request", Json::parse(request)}};
}

std::string first_line(const LoadtestOptions& options, const v1::GetServerInfoResponse& server) {
  const std::string load = options.rate
                               ? absl::StrFormat("open loop, %g requests/s", *options.rate)
                               : absl::StrFormat("closed loop, %d at once", *options.concurrency);
  const std::string extent = options.counts_requests()
                                 ? absl::StrFormat("%d requests", *options.requests)
                                 : absl::StrFormat("%g s", options.duration());
  return absl::StrFormat("%s, %s, seed %d; %s: %d ranks, %s, lookahead %s\n", load, extent,
                         options.seed, options.server.target(), server.num_ranks(),
                         server.backend(), server.lookahead());
}

// Prints a line for each interval.
std::function<void(const LoadProgress&)> progress_printer() {
  return [before = LoadProgress{}](const LoadProgress& now) mutable {
    const double seconds = now.elapsed_s - before.elapsed_s;
    std::fprintf(stderr, "outrider: %.0f s: %lld running, %lld done, %lld errors, %.1f tokens/s\n",
                 now.elapsed_s, static_cast<long long>(now.running),
                 static_cast<long long>(now.done), static_cast<long long>(now.errors),
                 static_cast<double>(now.tokens - before.tokens) / seconds);
    before = now;
  };
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

// Where the test says nothing, or what it says must not be.
void throw_if_bad(const LoadReport& report, const LoadResult& result,
                  const std::optional<GreedyCheck>& greedy) {
  if (!report.valid()) {
    std::string why =
        absl::StrFormat("the test is void: none of %d requests succeeded%s", report.requests,
                        result.gave_up ? ", and sending was given up" : "");
    if (report.errors > 0) {
      const auto& [code, message] = *report.first_error_by_code.begin();
      why += "; " + code + ": " + message;
    }
    throw Error(why);
  }
  if (greedy && !greedy->differences.empty()) {
    const GreedyDifference& first = greedy->differences.front();
    throw Error(absl::StrFormat(
        "%d of %d greedy answers differ from another one to the same prompt; the first: request %d "
        "from request %d (prompt %d) at token %d",
        greedy->differences.size(), greedy->num_compared, first.request, first.other, first.prompt,
        first.position));
  }
}

int loadtest(const LoadtestOptions& options) {
  StopSignals signals(false);
  const std::vector<std::string> prompts =
      options.prompts.empty() ? builtin_prompts() : read_prompts(options.prompts);
  OutputFile json_file(options.json), samples_file(options.samples);
  const v1::GenerateRequest parameters = options.request.request();
  const OutputLength length = output_length(options, parameters);
  RequestDraws draws(static_cast<int>(prompts.size()), length, options.seed);

  const auto stub = v1::GenerationService::NewStub(connect_to_server(options.server));
  const v1::GetServerInfoResponse server = wait_for_server(*stub, options.wait_for_ready_s);
  std::fputs(first_line(options, server).c_str(), stdout);
  std::fflush(stdout);

  const auto ask = [&, index = int64_t{0}]() mutable {
    const RequestDraws::Draw draw = draws.next();
    v1::GenerateRequest request =
        options.request.request_for(prompts[static_cast<size_t>(draw.prompt)]);
    request.set_request_id("loadtest-" + std::to_string(index++));
    request.mutable_sampling_params()->set_max_tokens(draw.max_tokens);
    request.mutable_sampling_params()->set_seed(draw.seed);
    return LoadGenerator::Ask{draw.prompt, std::move(request)};
  };
  LoadOptions load = options.load;
  load.on_progress = progress_printer();
  LoadGenerator generator(options.server, make_plan(options), ask, load);
  signals.on_stop([&generator](StopRequest) { generator.stop(); });
  const LoadResult result = generator.run();
  signals.on_stop({});

  const LoadReport report = make_report(result.records, options.warmup_s, result.load_end_s);
  std::optional<GreedyCheck> greedy;
  if (is_greedy(parameters)) greedy = check_greedy(result.records);

  std::fputs(to_table(report).c_str(), stdout);
  if (greedy) {
    std::printf("greedy: %lld answers compared with another to the same prompt, %zu differ\n",
                static_cast<long long>(greedy->num_compared), greedy->differences.size());
  }
  Json json = to_json(report);
  json["greedy"] = greedy ? to_json(*greedy) : Json(nullptr);
  json["interrupted"] = result.interrupted;
  json["gave_up"] = result.gave_up;
  json["settings"] = settings(options, parameters, length, prompts.size());
  json["server"] = {
      {"version", server.version()},     {"num_ranks", server.num_ranks()},
      {"backend", server.backend()},     {"default_drafter", server.default_drafter()},
      {"lookahead", server.lookahead()}, {"numerics_fingerprint", server.numerics_fingerprint()}};
  json["server_afterwards"] = server_afterwards(*stub);
  json_file.line(json, 2);
  json_file.close();
  for (const RequestRecord& record : result.records) samples_file.line(to_json(record));
  samples_file.close();
  throw_if_bad(report, result, greedy);
  return 0;
}

// A number within [least, most], which NaN is not.
CLI::Validator number_within(double least, double most) {
  return {[least, most](const std::string& text) {
            double value = 0;
            const bool within =
                CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return within ? std::string()
                          : absl::StrFormat("%s is not a number from %g to %g", text, least, most);
          },
          "NUMBER"};
}

// What no single flag can know.
void check_together(const LoadtestOptions& options) {
  if (!options.rate && !options.concurrency) {
    throw CLI::RequiredError("One of --concurrency and --rate");
  }
  if (options.rate && *options.rate * options.duration() > kMaxArrivals &&
      static_cast<double>(options.max_requests()) > kMaxArrivals) {
    throw CLI::ValidationError(
        "--rate", absl::StrFormat("%g requests/s for %g s are more than %g", *options.rate,
                                  options.duration(), kMaxArrivals));
  }
  if (options.warmup_s >= options.duration()) {
    throw CLI::ValidationError("--warmup", absl::StrFormat("%g s leave nothing of a test of %g s",
                                                           options.warmup_s, options.duration()));
  }
}

void add_load_flags(CLI::App& command, LoadtestOptions& options) {
  const CLI::Validator seconds = number_within(0, 1e7);
  auto* concurrency =
      command.add_option("--concurrency", options.concurrency,
                         "Closed loop: so many users, each asks again when answered");
  concurrency->check(CLI::Range(1, 10'000));
  command.add_option("--rate", options.rate, "Open loop: so many requests a second (Poisson)")
      ->check(number_within(1e-6, 1e6))
      ->excludes(concurrency);
  auto* duration =
      command.add_option("--duration", options.duration_s, "Send for so many seconds (default 30)");
  duration->check(number_within(0.001, 1e7));
  command.add_option("--requests", options.requests, "Send so many requests instead")
      ->check(CLI::Range(int64_t{1}, static_cast<int64_t>(kMaxArrivals)))
      ->excludes(duration);
  command
      .add_option("--warmup", options.warmup_s,
                  "Leave the first so many seconds out of the report (default 0)")
      ->check(seconds);
  command
      .add_option("--seed", options.seed, "Of arrivals, prompts, lengths and sampling (default 0)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--prompts", options.prompts,
                     "A file of JSON lines with \"text\" (default: a built-in set)");
  command
      .add_option("--timeout", options.load.timeout_s,
                  "Give up on an answer after so many seconds (default 600)")
      ->check(number_within(0.001, 1e7));
  command
      .add_option("--wait-for-ready", options.wait_for_ready_s,
                  "Wait so many seconds for a server that is not there yet")
      ->check(seconds);
  command
      .add_option("--report-every", options.load.progress_every_s,
                  "Seconds between lines of progress (default 10; 0: none)")
      ->check(seconds);
  command.add_option("--json", options.json, "Write the report to this file");
  command.add_option("--samples", options.samples,
                     "Write what was recorded of each request to this file, as JSON lines");
}

}  // namespace

void add_loadtest_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<LoadtestOptions>();
  CLI::App* command = app.add_subcommand("loadtest", "Measure a running server under load");
  options->server.add_to(*command);
  add_load_flags(*command, *options);
  options->request.add_parameters_to(*command);
  command
      ->add_option("--output-length", options->output_length,
                   "max_tokens: fixed:N or uniform:A:B (default fixed:64)")
      ->check([](const std::string& text) {
        return parse_output_length(text) ? "" : text + ": expected fixed:N or uniform:A:B";
      })
      ->excludes(command->get_option("--max-tokens"));
  command->callback([options, &action] {
    check_together(*options);
    action = [options] { return loadtest(*options); };
  });
}

}  // namespace outrider
