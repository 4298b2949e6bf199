// `outrider serve`: the server. Under mpirun every rank runs this; rank 0 leads.
#include <absl/cleanup/cleanup.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/job_control.h"
#include "comm/liveness.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/rank_hello.h"
#include "comm/reporting_communicator.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/host_name.h"
#include "core/version.h"
#include "engine/engine.h"
#include "engine/follower.h"
#include "launcher/command_line.h"
#include "launcher/device_selection.h"
#include "launcher/engine_flags.h"
#include "launcher/quarantine_memory.h"
#include "launcher/serving_end.h"
#include "launcher/stop_signals.h"
#include "launcher/supervision.h"
#include "model/chat_template.h"
#include "model/checkpoint_hash.h"
#include "server/address.h"
#include "server/port_probe.h"
#include "server/server.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What clients have to hear the end of their calls, at an orderly end: mpirun kills ranks about a
// second after it was told to end them.
constexpr milliseconds kShutdownGrace{300};
// What a process has to end, in order and after a failure, before the kernel ends it: MPI_Finalize
// waits for every rank, and one may hang at the very end.
constexpr unsigned kEndTimeoutS = 15;
constexpr unsigned kFailedEndTimeoutS = 2;

struct ServeOptions {
  EngineOptions engine;
  DefaultDrafts default_drafts;
  DeviceOptions device;
  ServerOptions server;
  bool insecure = false;
  std::string log_level = "info";
  int drain_seconds = 30;
};

// Options that every rank must share, as text.
std::string shared_settings(const EngineOptions& options) {
  return std::to_string(options.drafter ? static_cast<int>(*options.drafter) : -1) + " " +
         options.lookahead.text() + " " + std::to_string(options.max_draft_tokens) + " " +
         std::to_string(options.max_alternatives) + " " + std::to_string(options.tpot_slo_ms) +
         " " + std::to_string(options.max_positions) + " " + std::to_string(options.max_sequences) +
         " " + std::to_string(options.max_rows) + " " + std::to_string(options.prefill_chunk) +
         " " + std::to_string(options.prefill_beside) + " " +
         std::to_string(options.kv_cache_tokens);
}

// Of all that drafts, as text.
std::string draft_hashes(const EngineOptions& options) {
  std::string hashes;
  if (options.draft) hashes += " model " + checkpoint_hash(*options.draft);
  if (options.draft_head) hashes += " head " + checkpoint_hash(*options.draft_head);
  if (options.draft_counts) hashes += " counts " + file_hash(*options.draft_counts);
  return hashes;
}

RankHello make_hello(const EngineOptions& options, const RankDevice& device) {
  return {.host = host_name(),
          .version = std::string(kVersion) + " build " + build_id(),
          .instruction_set = device.backend->description(),
          .device = device.choice.name,
          .nccl_version = device.choice.gpu ? nccl_version() : "",
          .checkpoint_hash = options.model_hash,
          .tokens_hash = tokens_hash(options.model),
          .draft_hash = draft_hashes(options),
          .settings_hash = shared_settings(options)};
}

// What the flags alone show to be wrong: told before anything is begun. Throws Error.
void check_together(const ServeOptions& options) {
  const ServerOptions& server = options.server;
  check_together(server);
  if (!is_loopback(server.address) && server.tls.cert.empty() && !options.insecure) {
    throw Error("--address " + server.address +
                " can be reached from other machines; expected --tls-cert and --tls-key, a "
                "loopback address, or --insecure to send everything in the clear");
  }
  const LookaheadPolicy& lookahead = options.engine.lookahead;
  if (lookahead.kind != LookaheadPolicy::Kind::adaptive &&
      lookahead.most() > options.engine.max_draft_tokens) {
    throw Error("--lookahead " + lookahead.text() + " drafts " + std::to_string(lookahead.most()) +
                " tokens; expected at most --max-speculative-tokens, " +
                std::to_string(options.engine.max_draft_tokens));
  }
  const auto& drafter = options.engine.drafter;
  if (drafter && !options.default_drafts.look_for(*drafter)) {
    check_drafter(*drafter, options.engine.drafter_files());
  }
}

std::unique_ptr<Server> listen(const ServerOptions& options) {
  if (options.auth_token_file.empty() && options.tls.ca.empty() && !is_loopback(options.address)) {
    spdlog::warn(
        "whoever reaches {} may ask: there is no --auth-token-file and no "
        "--tls-client-ca",
        options.address);
  }
  return std::make_unique<Server>(options);
}

// What every rank says before anything is loaded: its hello, or why it cannot take part. Returns
// why the job cannot start, the same on all ranks; empty where it can.
std::string check_ranks(World& world, const std::string& hello, const std::string& error) {
  const auto all_said = world.all_gather_strings(error.empty() ? "+" + hello : "-" + error);
  std::vector<RankHello> hellos;
  try {
    for (const std::string& said : all_said) {
      if (said[0] == '-') return said.substr(1);
      hellos.push_back(parse_hello(said.substr(1)));
    }
    compare_hellos(hellos);
  } catch (const Error& mixed) {
    return mixed.what();
  }
  return "";
}

// What the parts of a serving process have in common.
struct Process {
  const ServeOptions& options;
  Backend& backend;
  StopSignals& signals;
  bool on_gpus;
  SupervisorLink* launcher;  // null where `outrider launch` did not start this
  // Collective. It may hang where another rank does, so a Liveness watches it.
  std::function<std::unique_ptr<Communicator>()> make_communicator;
  int local_size = 1;  // ranks on this host
};

void log_own_copy(const Process& process, const ReportingCommunicator& communicator) {
  if (process.local_size == 1 || !communicator.keeps_copies()) return;
  spdlog::info("rank {} has a copy to itself of drafts' weights that others of its host hold, too",
               communicator.rank());
}

[[noreturn]] void tell(const std::string& what) {
  std::fprintf(stderr, "outrider: %s\n", what.c_str());
  throw ToldError(what);
}

// Rank 0. control: the other ranks; null where there are none.
void lead(const Process& process, ControlServer* control, Server& server) {
  const ServeOptions& options = process.options;
  EngineOptions engine_options = options.engine;
  log_progress(engine_options);
  StepProgress progress;
  ServingEnd end(seconds(options.drain_seconds),
                 [launcher = process.launcher](const Loss& loss, const std::string& what) {
                   if (launcher == nullptr) return;
                   // What holds up this rank, or all alike, would hold up the next start, too.
                   loss.rank == 0 ? launcher->failed(what) : launcher->lost(what);
                 });
  std::unique_ptr<Communicator> communicator;  // outlives who asks it for its failure
  Liveness liveness(
      0, control != nullptr ? control->take_heartbeats() : std::vector<Liveness::Peer>(), progress,
      [&end](const Loss& loss) { end.lost(loss); }, {},
      [&communicator] { return communicator->failure(); });
  // Until it serves, a request to end ends the process at once, which is no loss to the others.
  const absl::Cleanup deaf = [&process] { process.signals.on_stop({}); };
  if (control != nullptr) {
    process.signals.on_stop([&liveness, control](StopRequest) {
      liveness.goodbye();
      control->goodbye();
      _exit(128 + SIGTERM);
    });
  }
  communicator = process.make_communicator();
  progress.joined();
  ChatTemplate chat_template = ChatTemplate::load(engine_options.model);
  ReportingCommunicator reporting(*communicator, progress);
  Executor executor(engine_options, process.backend, reporting);
  executor.report_to(progress);
  log_own_copy(process, reporting);
  // Each says that it has loaded.
  if (control != nullptr) control->gather(LivenessLimits().longest_load);
  spdlog::info("the KV cache holds {} tokens", executor.num_pages() * kPageTokens);
  const LookaheadPolicy& lookahead = options.engine.lookahead;
  if (options.engine.tpot_slo_ms > 0 && lookahead.kind != LookaheadPolicy::Kind::adaptive) {
    spdlog::warn("--tpot-slo bounds no drafts with --lookahead {}", lookahead.text());
  }
  const QuarantineMemory quarantine_memory = open_quarantine_memory();
  std::optional<Quarantine> quarantine;
  if (quarantine_memory != nullptr) quarantine.emplace(*quarantine_memory);
  Engine engine(executor, control, {&server.metrics(), server.trace()},
                quarantine ? &*quarantine : nullptr);
  std::optional<PortProbe> probe;
  const auto ended = [&] {
    end.engine_ended();
    process.signals.on_stop({});
  };
  try {
    server.start_serving(engine, {.name = model_name(engine_options),
                                  .backend = process.backend.description(),
                                  .numerics = options.device.numerics,
                                  .num_ranks = communicator->size(),
                                  .chat_template = std::move(chat_template)});
    end.serving(engine, server, [&liveness] { return liveness.peer_gone(); });
    process.signals.on_stop([&end](StopRequest request) { end.request(request); });
    if (const StepCosts& costs = executor.tables().target; costs.known()) {
      spdlog::info(
          "a step takes {:.1f} ms for 1 row, {:.1f} for 8, {:.1f} for 32; 1000 tokens before "
          "a sequence's rows {:.2f} more, and {:.2f} for each row",
          costs.rows_ms(1), costs.rows_ms(8), costs.rows_ms(32), 1000 * costs.ms_per_position,
          1000 * costs.ms_per_row_position);
    }
    spdlog::info("listening on {}:{}, {} ranks, model {}", options.server.address, server.port(),
                 communicator->size(), model_name(engine_options));
    if (server.http_port() != 0) {
      spdlog::info("metrics and probes on {}:{}", options.server.address, server.http_port());
    }
    if (process.launcher != nullptr) process.launcher->serving(process.on_gpus);
    probe.emplace(
        server.addresses(), [&end] { end.unreachable(); }, ProbeTimes(),
        [&server] { return server.http_ended(); });
    engine.run();
  } catch (const std::exception& error) {
    ended();
    if (process.launcher != nullptr) process.launcher->failed(error.what());
    alarm(kFailedEndTimeoutS);
    server.fail_calls(error.what());
    server.shutdown(kShutdownGrace);
    tell(error.what());  // what is unwound may hang, and the alarm would end this without a word
  }
  ended();
  if (process.launcher != nullptr) process.launcher->finished();
  liveness.goodbye();
  if (control != nullptr) control->goodbye();
  // What holds up this end is no failure of it; under mpirun `launch` sees to that.
  if (!launched_by_mpi()) signal(SIGALRM, [](int) { _exit(0); });
  alarm(kEndTimeoutS);
  spdlog::info("stopping");  // last: who reads the log may have stopped reading
  server.shutdown(kShutdownGrace);
}

// Returns when rank 0 has closed the connection.
void wait_for_end(ControlClient& control) {
  try {
    while (control.receive({})) continue;
  } catch (const Error&) {
    return;
  }
}

// Every other rank. It ends when rank 0 says so, or is gone; a signal to end is rank 0's to act on.
void follow(const Process& process, int rank, ControlClient& control) {
  StepProgress progress;
  std::atomic_flag told;
  const auto lost = [rank, &told](const Loss& loss) {
    if (told.test_and_set()) return;
    alarm(kFailedEndTimeoutS);  // before anything is said: who reads it may have stopped reading
    std::fprintf(stderr, "outrider: rank %d: rank %d is lost: %s\n", rank, loss.rank,
                 loss.reason.c_str());
    _exit(kExitFailed);  // the main thread may wait for that very rank inside MPI
  };
  std::unique_ptr<Communicator> communicator;  // outlives who asks it for its failure
  Liveness liveness(rank, control.take_heartbeats(), progress, lost, {},
                    [&communicator] { return communicator->failure(); });
  communicator = process.make_communicator();
  progress.joined();
  ReportingCommunicator reporting(*communicator, progress);
  Executor executor(process.options.engine, process.backend, reporting);
  executor.report_to(progress);
  log_own_copy(process, reporting);
  process.signals.on_stop({});
  try {
    control.send({});
    run_follower(executor, control);
  } catch (const DisagreementError& error) {
    // Rank 0 has found the same, and clients shall hear of that: not that this rank is lost.
    while (told.test_and_set()) pause();
    alarm(kFailedEndTimeoutS);
    std::fprintf(stderr, "outrider: rank %d: %s\n", rank, error.what());
    wait_for_end(control);
    _exit(kExitFailed);
  } catch (const Error& error) {
    if (liveness.heard_goodbye()) _exit(128 + SIGTERM);  // told to end before it served
    // The same loss, seen by both threads, is told once. Unwinding may wait for a collective.
    while (told.test_and_set()) pause();
    alarm(kFailedEndTimeoutS);
    tell("rank " + std::to_string(rank) + ": " + error.what());
  }
  liveness.goodbye();
  alarm(kEndTimeoutS);
}

int serve_alone(ServeOptions options, StopSignals& signals) {
  const auto server = listen(options.server);
  check_files(options.engine, 1);
  const std::string draft = options.default_drafts.choose(options.engine, options.engine.drafter);
  if (!draft.empty()) spdlog::info("{}", draft);
  const RankDevice device =
      open_device(options.device, options.engine, visible_gpus(options.device), {}, 0, 1);
  options.engine.kv_cache_tokens = device.kv_cache_tokens;
  spdlog::info("computing {}", device.choice.reason);
  const bool gpu = device.choice.gpu.has_value();
  lead({options, *device.backend, signals, gpu, nullptr,
        [gpu] { return make_lone_communicator(gpu); }},
       nullptr, *server);
  return 0;
}

// Returns why the job could not start; empty after it has served.
std::string serve_as_rank(ServeOptions options, StopSignals& signals, SupervisorLink* launcher,
                          World& world) {
  std::unique_ptr<Server> server;
  RankDevice device;
  std::string hello, error;
  options.device.served_on_gpus = std::getenv(kServedOnGpusVariable) != nullptr;
  const VisibleGpus gpus = visible_gpus(options.device);
  try {
    const LocalRank local = local_rank(gpus, world);
    if (world.rank() == 0) {
      server = listen(options.server);
      check_files(options.engine, world.size());
    }
    const std::string draft = options.default_drafts.choose(options.engine, options.engine.drafter);
    if (world.rank() == 0 && !draft.empty()) spdlog::info("{}", draft);
    device = open_device(options.device, options.engine, gpus, local, world.rank(), world.size());
    hello = serialise_hello(make_hello(options.engine, device));
  } catch (const Error& failure) {
    error = failure.what();
  }
  error = check_ranks(world, hello, error);
  if (!error.empty()) return error;
  // Every rank has to have room for them.
  options.engine.kv_cache_tokens = world.least(device.kv_cache_tokens);

  if (world.rank() == 0 || device.choice.gpu) {
    spdlog::info("rank {} computes {}", world.rank(), device.choice.reason);
  }
  JobControl control = open_control(world);
  const bool gpu = device.choice.gpu.has_value();
  const auto make_communicator = [&] {
    return make_device_communicator(gpu, options.device, world, control);
  };
  const Process process = {options,  *device.backend,   signals,           gpu,
                           launcher, make_communicator, world.local_size()};
  if (world.rank() > 0) {
    follow(process, world.rank(), *control.client);
  } else {
    lead(process, control.server.get(), *server);
  }
  return "";
}

int serve(const ServeOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // who reads the log may be gone
  StopSignals signals(launched_by_mpi());
  set_up_log(options.server.log_format, options.log_level);
  if (!launched_by_mpi()) return serve_alone(options, signals);

  die_with_parent();
  std::unique_ptr<SupervisorLink> launcher;
  std::string error;
  int rank = 0;
  try {
    World world(nullptr, nullptr);
    rank = world.rank();
    if (rank == 0) launcher = SupervisorLink::connect(signals);
    error = serve_as_rank(options, signals, launcher.get(), world);
    // While the others wait in MPI_Finalize: the first to exit makes mpirun end the rest.
    if (rank == 0 && !error.empty()) throw Error(error);
  } catch (const ToldError&) {
    throw;
  } catch (const std::exception& failure) {
    if (launcher != nullptr) {
      const bool gone = dynamic_cast<const PeerGoneError*>(&failure) != nullptr;
      gone ? launcher->lost(failure.what()) : launcher->failed(failure.what());
    }
    throw Error((rank == 0 ? "" : "rank " + std::to_string(rank) + ": ") + failure.what());
  }
  return error.empty() ? 0 : kExitFailed;  // rank 0 says why
}

}  // namespace

void add_serve_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model; under mpirun -np N on N ranks");
  add_model_flags(*command, options->engine);
  add_batching_flags(*command, options->engine);
  add_policy_flags(*command, options->engine);
  options->default_drafts.add_to(*command);
  add_device_flags(*command, options->device);
  command->add_option("--address", options->server.address,
                      "Where to listen (default 127.0.0.1: this machine alone)");
  command->add_option("--port", options->server.port, "Default 50051; 0: any free one")
      ->check(CLI::Range(0, 65535));
  command->add_flag("--insecure", options->insecure,
                    "Listen where other machines can connect, without TLS");
  const CLI::Validator file = not_empty("a file");
  command
      ->add_option("--tls-cert", options->server.tls.cert,
                   "PEM of the server's certificate and its chain: TLS on every port")
      ->check(file);
  command->add_option("--tls-key", options->server.tls.key, "PEM of its private key")->check(file);
  command
      ->add_option("--tls-client-ca", options->server.tls.ca,
                   "PEM of what clients' certificates must be signed by (mutual TLS)")
      ->check(file);
  command
      ->add_option("--auth-token-file", options->server.auth_token_file,
                   "Bearer tokens, one a line; clients must show one")
      ->check(file);
  command
      ->add_option(
          "--max-waiting-requests", options->server.max_waiting_requests,
          "Answers that may wait, n of each request; beyond, calls end with RESOURCE_EXHAUSTED "
          "(default 1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command
      ->add_option("--max-waiting-tokens", options->server.max_waiting_tokens,
                   "Tokens of their prompts, likewise (default 1048576)")
      ->type_name("INT64")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      ->add_option("--max-streams-per-tenant", options->server.max_streams_per_tenant,
                   "Calls that may be under way with one token, or without tokens all together; "
                   "default 0: no limit")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  command
      ->add_option(
          "--max-speculative-tokens", options->engine.max_draft_tokens,
          "Most tokens that a step drafts for an answer, one behind the other, and that a request "
          "may ask for with their alternatives (default 15)")
      ->check(CLI::Range(0, kMaxDraftTokens));
  command
      ->add_option_function<int>(
          "--http-port", [options](int port) { options->server.http_port = port; },
          "/metrics, /healthz and /readyz on this port (default: no HTTP); 0: any free one")
      ->check(CLI::Range(0, 65535));
  command
      ->add_option("--trace", options->server.trace_file,
                   "Write Chrome trace events of steps and requests to this file")
      ->check(file);
  command
      ->add_option_function<std::string>(
          "--log-format",
          [options](const std::string& name) {
            options->server.log_format = name == "json" ? LogFormat::json : LogFormat::text;
          },
          "text (default) or json: an object a line")
      ->check(CLI::IsMember({"text", "json"}));
  command
      ->add_option("--drain-seconds", options->drain_seconds,
                   "What running calls have to finish after SIGTERM (default 30)")
      ->check(CLI::Range(0, 86'400));
  command->add_flag("--reflection", options->server.reflection, "gRPC server reflection");
  command->add_option("--log-level", options->log_level, "Default info")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  command->callback([options, &action] {
    try {
      check_together(*options);
    } catch (const Error& error) {
      throw CLI::ValidationError(error.what());
    }
    action = [options] { return serve(*options); };
  });
}

}  // namespace outrider
