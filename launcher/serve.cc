// `outrider serve`: the server. Under mpirun every rank runs this; rank 0 leads.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/control_channel.h"
#include "comm/rank_hello.h"
#include "comm/self_communicator.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/version.h"
#include "engine/engine.h"
#include "engine/follower.h"
#include "launcher/command_line.h"
#include "launcher/engine_flags.h"
#include "launcher/stop_signals.h"
#include "model/chat_template.h"
#include "model/checkpoint_hash.h"
#include "server/server.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kConnectTimeout{60};
constexpr seconds kLoadTimeout{1800};
// What clients have to hear the end of their calls, at an orderly end: mpirun kills ranks about a
// second after it was told to end them.
constexpr milliseconds kShutdownGrace{300};
// How long a rank's loss may stay unnoticed by the engine's thread, which may wait for that very
// rank inside MPI.
constexpr milliseconds kLossTimeout{1000};

struct ServeOptions {
  EngineOptions engine;
  ServerOptions server;
  bool insecure = false;
  std::string log_level = "info";
};

void set_up_log(const ServeOptions& options) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("outrider"));
  spdlog::set_level(spdlog::level::from_str(options.log_level));
}

// Options that every rank must share, as text.
std::string shared_settings(const EngineOptions& options) {
  return std::to_string(options.drafter ? static_cast<int>(*options.drafter) : -1) + " " +
         std::to_string(options.num_speculative_tokens) + " " +
         std::to_string(options.prefill_chunk) + " " + std::to_string(options.max_positions);
}

RankHello make_hello(const EngineOptions& options, const Backend& backend) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return {.host = host,
          .version = std::string(kVersion) + " build " + build_id(),
          .instruction_set = backend.description(),
          .device = "cpu",
          .checkpoint_hash = checkpoint_hash(options.model),
          .draft_hash = options.draft ? checkpoint_hash(*options.draft) : "",
          .settings_hash = shared_settings(options)};
}

std::unique_ptr<Server> listen(const ServeOptions& options) {
  if (!options.insecure && !is_loopback(options.server.address)) {
    throw Error("--address " + options.server.address +
                " can be reached from other machines, and there is no TLS yet; expected a loopback "
                "address, or --insecure to accept that");
  }
  return std::make_unique<Server>(options.server);
}

// What every rank says before anything is loaded: its hello, or why it cannot take part. Returns
// why the job cannot start, the same on all ranks; empty where it can.
std::string check_ranks(World& world, const std::string& hello, const std::string& error) {
  std::vector<RankHello> hellos;
  for (const std::string& said : world.all_gather_strings(error.empty() ? "+" + hello : error)) {
    if (said[0] != '+') return said;
    hellos.push_back(parse_hello(said.substr(1)));
  }
  try {
    compare_hellos(hellos);
  } catch (const Error& mixed) {
    return mixed.what();
  }
  return "";
}

// A rank that is lost ends every call at once, and the process, where the engine's thread cannot.
class LossWatch {
 public:
  LossWatch(ControlServer& control, Engine& engine, Server& server)
      : shared_(std::make_shared<Shared>()) {
    shared_->engine = &engine;
    shared_->server = &server;
    shared_->ended = engine_ended_.get_future();
    control.watch([shared = shared_](int rank, const std::string& reason) {
      const std::string what = "rank " + std::to_string(rank) + " is lost: " + reason;
      {
        const std::lock_guard lock(shared->mutex);
        if (shared->engine == nullptr) return;
        shared->engine->fail(what);
        shared->server->fail_calls(what);
      }
      if (shared->ended.wait_for(kLossTimeout) == std::future_status::ready) return;
      std::fprintf(stderr, "outrider: %s\n", what.c_str());
      _exit(kExitFailed);
    });
  }
  // Further losses, which the first one entails, go unheard.
  ~LossWatch() {
    const std::lock_guard lock(shared_->mutex);
    shared_->engine = nullptr;
  }

  // The engine's thread has noticed.
  void engine_ended() { engine_ended_.set_value(); }

 private:
  // The watcher's thread lives as long as the control server, longer than the engine.
  struct Shared {
    std::mutex mutex;
    Engine* engine;
    Server* server;
    std::future<void> ended;
  };

  std::promise<void> engine_ended_;
  std::shared_ptr<Shared> shared_;
};

// Rank 0. control: the other ranks; null where there are none.
void lead(const ServeOptions& options, Backend& backend, Communicator& communicator,
          ControlServer* control, Server& server, StopSignals& signals) {
  EngineOptions engine_options = options.engine;
  log_progress(engine_options);
  ChatTemplate chat_template = ChatTemplate::load(engine_options.model);
  Executor executor(engine_options, backend, communicator);
  if (control != nullptr) control->gather(kLoadTimeout);  // each says that it has loaded
  Engine engine(executor, control);
  std::optional<LossWatch> loss_watch;
  if (control != nullptr) loss_watch.emplace(*control, engine, server);
  signals.on_stop([&engine] { engine.stop(); });
  server.start_serving(engine, {.name = model_name(engine_options),
                                .backend = backend.description(),
                                .num_ranks = communicator.size(),
                                .chat_template = std::move(chat_template)});
  spdlog::info("listening on {}:{}, {} ranks, model {}", options.server.address, server.port(),
               communicator.size(), model_name(engine_options));
  try {
    engine.run();
  } catch (const std::exception& error) {
    if (loss_watch) loss_watch->engine_ended();
    signals.on_stop({});
    server.fail_calls(error.what());
    server.shutdown(kShutdownGrace);
    throw;
  }
  if (loss_watch) loss_watch->engine_ended();
  signals.on_stop({});
  spdlog::info("stopping");
  if (control != nullptr) control->goodbye();
  server.shutdown(kShutdownGrace);
}

// Every other rank. It ends when rank 0 says so, or is gone; a signal to end is rank 0's to act on.
void follow(const ServeOptions& options, Backend& backend, Communicator& communicator,
            ControlClient& control, StopSignals& signals) {
  Executor executor(options.engine, backend, communicator);
  signals.on_stop({});
  control.send({});
  run_follower(executor, control);
}

int serve_alone(const ServeOptions& options, Backend& backend, StopSignals& signals) {
  const auto communicator = make_self_communicator();
  const auto server = listen(options);
  lead(options, backend, *communicator, nullptr, *server, signals);
  return 0;
}

// Returns why the job could not start; empty after it has served.
std::string serve_as_rank(const ServeOptions& options, Backend& backend, StopSignals& signals,
                          World& world) {
  std::unique_ptr<Server> server;
  std::string hello, error;
  try {
    if (world.rank() == 0) {
      server = listen(options);
      check_files(options.engine);
    }
    hello = serialise_hello(make_hello(options.engine, backend));
  } catch (const Error& failure) {
    error = failure.what();
  }
  error = check_ranks(world, hello, error);
  if (!error.empty()) return error;

  const auto communicator = world.make_communicator();
  if (world.rank() > 0) {
    const std::string address = world.broadcast_string("");
    const std::string secret = world.broadcast_string("");
    ControlClient control(address, world.rank(), secret);
    follow(options, backend, *communicator, control, signals);
    return "";
  }
  const std::string secret = make_control_secret();
  ControlServer control(world.size() - 1, secret, control_host(world.local_size() == world.size()));
  world.broadcast_string(control.address());
  world.broadcast_string(secret);
  control.accept_all(kConnectTimeout);
  lead(options, backend, *communicator, &control, *server, signals);
  return "";
}

int serve(const ServeOptions& options) {
  StopSignals signals;
  set_up_log(options);
  const auto backend = make_cpu_backend();
  if (!launched_by_mpi()) return serve_alone(options, *backend, signals);

  die_with_parent();
  std::string error;
  int rank = 0;
  try {
    World world(nullptr, nullptr);
    rank = world.rank();
    error = serve_as_rank(options, *backend, signals, world);
    // While the others wait in MPI_Finalize: the first to exit makes mpirun end the rest.
    if (rank == 0 && !error.empty()) throw Error(error);
  } catch (const Error& failure) {
    throw Error((rank == 0 ? "" : "rank " + std::to_string(rank) + ": ") + failure.what());
  }
  return error.empty() ? 0 : kExitFailed;  // rank 0 says why
}

}  // namespace

void add_serve_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model; under mpirun -np N on N ranks");
  add_model_flags(*command, options->engine);
  add_policy_flags(*command, options->engine);
  command->add_option("--address", options->server.address,
                      "Where to listen (default 127.0.0.1: this machine alone)");
  command->add_option("--port", options->server.port, "Default 50051; 0: any free one")
      ->check(CLI::Range(0, 65535));
  command->add_flag("--insecure", options->insecure,
                    "Listen where other machines can connect, without TLS");
  command->add_flag("--reflection", options->server.reflection, "gRPC server reflection");
  command->add_option("--log-level", options->log_level, "Default info")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  command->callback([options, &action] { action = [options] { return serve(*options); }; });
}

}  // namespace outrider
