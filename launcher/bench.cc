// `outrider bench`: measures parts of Outrider on this machine.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "bench/comm_bench.h"
#include "bench/decode_bench.h"
#include "bench/device_op_bench.h"
#include "bench/load_bench.h"
#include "bench/op_bench.h"
#include "bench/serve_bench.h"
#include "bench/statistics.h"
#include "bench/tokenizer_bench.h"
#include "comm/job_control.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/world.h"
#include "core/error.h"
#include "launcher/command_line.h"
#include "launcher/device_selection.h"
#include "launcher/engine_flags.h"
#include "launcher/loadtest/sweep.h"
#include "launcher/number_checks.h"
#include "launcher/stop_signals.h"

namespace outrider {
namespace {

// --device of benchmarks: the CPU unless a GPU is asked for.
struct BenchDeviceOptions {
  std::string device = "cpu";
  DeviceOptions gpus;

  void add_to(CLI::App& command) {
    command.add_option("--device", device, "cpu (default) or cuda")
        ->check(CLI::IsMember({"cpu", "cuda"}));
    command.add_flag("--share-gpus", gpus.share_gpus, "Let several ranks use one GPU");
  }
};

// world: null where this process is alone.
BenchDevice open_bench_device(BenchDeviceOptions options, World* world) {
  using Device = DeviceOptions::Device;
  options.gpus.device = options.device == "cpu" ? Device::cpu : Device::cuda;
  const VisibleGpus gpus = visible_gpus(options.gpus);
  const LocalRank local = world == nullptr ? LocalRank{} : local_rank(gpus, *world);
  const DeviceChoice choice = choose_device(options.gpus, local, gpus);
  BenchDevice device = {.name = choice.name, .gpu = choice.gpu.has_value()};
  if (!device.gpu) {
    device.backend = make_cpu_backend();
    return device;
  }
  if (world != nullptr && world->size() > 1) check_nccl_library();
  open_cuda_device(*choice.gpu);
  device.backend = make_cuda_backend(*choice.gpu, options.gpus.numerics);
  return device;
}

// run(device, communicator, control), on every rank of the job; alone where there is none.
template <typename Run>
int on_all_ranks(const BenchDeviceOptions& on, const Run& run) {
  if (!launched_by_mpi()) {
    BenchDevice device = open_bench_device(on, nullptr);
    JobControl alone;
    run(device, *make_lone_communicator(device.gpu), alone);
    return 0;
  }
  die_with_parent();
  World world(nullptr, nullptr);
  BenchDevice device = open_bench_device(on, &world);
  JobControl control = open_control(world);
  run(device, *make_device_communicator(device.gpu, on.gpus, world, control), control);
  return 0;
}

int bench_decode(const DecodeBenchOptions& options, const BenchDeviceOptions& on) {
  return on_all_ranks(on, [&](BenchDevice& device, Communicator& ranks, JobControl&) {
    run_decode_bench(options, device, ranks);
  });
}

int bench_comm(const CommBenchOptions& options, const BenchDeviceOptions& on) {
  constexpr char kNeeds[] =
      "bench comm: there is one rank; expected at least 2, as under mpirun -np 2";
  if (!launched_by_mpi()) throw Error(kNeeds);
  die_with_parent();
  World world(nullptr, nullptr);
  if (world.size() < 2) throw Error(kNeeds);
  const bool one_host = world.local_size() == world.size();
  BenchDevice device = open_bench_device(on, &world);
  JobControl control = open_control(world);
  const auto communicator = make_device_communicator(device.gpu, on.gpus, world, control);
  run_comm_bench(options, device, one_host, *communicator, control.server.get(),
                 control.client.get());
  return 0;
}

int bench_serve(const ServeBenchOptions& options, const BenchDeviceOptions& on) {
  return on_all_ranks(on, [&](BenchDevice& device, Communicator& ranks, JobControl& control) {
    run_serve_bench(options, device, ranks, control.server.get(), control.client.get());
  });
}

int bench_load(const LoadBenchOptions& options, const BenchDeviceOptions& on) {
  return on_all_ranks(on, [&](BenchDevice& device, Communicator& ranks, JobControl&) {
    run_load_bench(options, device, ranks);
  });
}

// Rows, ascending as they are given or not; the first is what others are compared with.
CLI::Option* add_rows(CLI::App& command, std::vector<int64_t>& rows, const std::string& what,
                      int most = 16) {
  return command.add_option("--rows", rows, what)->delimiter(',')->check(CLI::Range(1, most));
}

void add_copy_flag(CLI::App& command, size_t& bytes) {
  command
      .add_option_function<double>(
          "--copy-mib", [&bytes](double mib) { bytes = static_cast<size_t>(mib * (1 << 20)); },
          "Size of the copy that says what a GPU's memory delivers (default 1024); op goes through "
          "a quarter of it before it reads an operand again")
      ->check(number_within(0.001, 1 << 16));
}

void add_json_flag(CLI::App& command, std::optional<std::filesystem::path>& file) {
  command
      .add_option_function<std::string>(
          "--json", [&file](const std::string& path) { file = path; },
          "A file for the results, as Google Benchmark writes them")
      ->check(not_empty("a file"));
}

void add_op_command(CLI::App& bench, Action& action) {
  CLI::App* op = bench.add_subcommand("op", "Each kernel against the machine's memory");
  auto options = std::make_shared<OpBenchOptions>();
  auto device_options = std::make_shared<DeviceOpBenchOptions>();
  auto on = std::make_shared<BenchDeviceOptions>();
  on->add_to(*op);
  op->add_option("--repeats", options->repeats, "Rounds over all cases (default 7)")
      ->check(CLI::Range(1, 1 << 20));
  add_json_flag(*op, options->json);
  const std::string cpu = "On the CPU: ", cuda = "On a GPU: ";
  op->add_option("--threads", options->threads, cpu + "side by side (default 1)")
      ->check(CLI::Range(1, 1024));
  op->add_option("--isas", options->isas, cpu + "instruction sets, with commas (default all)");
  op->add_option("--only", options->only, cpu + "one table: stack, prefill, verify or ops")
      ->check(CLI::IsMember({"stack", "prefill", "verify", "ops"}));
  op->add_option("--shape", device_options->shapes,
                 cuda + "files with fields of a config.json, as for plan");
  add_rows(*op, device_options->rows, cuda + "with commas (default 1,4,5,8,16)", 1024);
  add_numerics_flag(*op, on->gpus.numerics);
  op->add_option("--contexts", device_options->contexts,
                 cuda + "tokens in the cache, with commas (default 1024,8192)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  add_copy_flag(*op, device_options->copy_bytes);
  op->callback([=, &action] {
    action = [=] {
      if (on->device == "cpu") return run_op_bench(*options);
      if (device_options->shapes.empty()) {
        throw Error("bench op --device cuda: expected --shape, files with fields of a config.json");
      }
      device_options->numerics = on->gpus.numerics;
      device_options->repeats = options->repeats;
      device_options->json = options->json;
      BenchDevice device = open_bench_device(*on, nullptr);
      return run_device_op_bench(*device_options, device);
    };
  });
}

void add_decode_command(CLI::App& bench, Action& action) {
  CLI::App* decode =
      bench.add_subcommand("decode", "The decode loop by parts; under mpirun on all ranks");
  auto options = std::make_shared<DecodeBenchOptions>();
  auto on = std::make_shared<BenchDeviceOptions>();
  decode
      ->add_option("--model", options->model,
                   "A Hugging Face directory, or a shape file, for random weights")
      ->required();
  CLI::Option* draft = decode->add_option_function<std::string>(
      "--draft", [options](const std::string& path) { options->draft = path; },
      "A draft model's directory");
  draft->check(not_empty("a directory"));
  decode
      ->add_option_function<std::string>(
          "--draft-head", [options](const std::string& path) { options->draft_head = path; },
          "The directory of a draft head made for this model")
      ->check(not_empty("a directory"))
      ->excludes(draft);
  on->add_to(*decode);
  decode->add_option("--context", options->context, "Tokens in the cache (default 256)")
      ->check(CLI::Range(1, 1 << 20));
  add_rows(*decode, options->rows, "Of a step, with commas (default 1,2,3,4,5,6,7,8,9,12,16)");
  decode->add_option("--repeats", options->repeats, "Rounds over all row counts (default 15)")
      ->check(CLI::Range(1, 1 << 20));
  add_copy_flag(*decode, options->copy_bytes);
  add_json_flag(*decode, options->json);
  decode->callback([=, &action] { action = [=] { return bench_decode(*options, *on); }; });
}

void add_comm_command(CLI::App& bench, Action& action) {
  CLI::App* comm = bench.add_subcommand(
      "comm",
      "Exchanges among ranks, on the CPU against what cores deliver to each other; under mpirun");
  auto options = std::make_shared<CommBenchOptions>();
  auto on = std::make_shared<BenchDeviceOptions>();
  on->add_to(*comm);
  add_numerics_flag(*comm, on->gpus.numerics);
  comm->add_option("--rows", options->rows, "With commas (default 1,2,4,8,16,32,64)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  comm->add_option("--hidden", options->hidden, "Floats of a row (default 576)")
      ->check(CLI::Range(1, 1 << 16));
  comm->add_option("--repeats", options->repeats, "Rounds over all exchanges (default 201)")
      ->check(CLI::Range(1, 1 << 20));
  add_json_flag(*comm, options->json);
  comm->callback([=, &action] { action = [=] { return bench_comm(*options, *on); }; });
}

void add_serve_bench_command(CLI::App& bench, Action& action) {
  CLI::App* serve = bench.add_subcommand(
      "serve",
      "The server's engine with and without drafts, its step by parts; under mpirun on "
      "all ranks");
  auto options = std::make_shared<ServeBenchOptions>();
  auto on = std::make_shared<BenchDeviceOptions>();
  add_model_flags(*serve, options->engine);
  add_drafter_flag(*serve, options->engine);
  on->add_to(*serve);
  serve
      ->add_option("--num-speculative-tokens", options->num_draft_tokens,
                   "K, in turns with 0 (default 4); 0: without drafts alone")
      ->check(CLI::Range(0, kMaxDraftTokens));
  serve->add_option("--concurrency", options->sequences, "Sequences at once (default 1)")
      ->check(CLI::Range(int64_t{1}, options->engine.max_sequences));
  serve->add_option("--prompt-tokens", options->prompt_tokens, "Random ones (default 64)")
      ->check(CLI::Range(1, 1 << 20));
  serve->add_option("--max-tokens", options->tokens, "That each sequence gets (default 128)")
      ->check(CLI::Range(1, 1 << 20));
  serve->add_option("--rounds", options->rounds, "Of such sequences at 0 and at K (default 3)")
      ->check(CLI::Range(1, 1 << 20));
  add_copy_flag(*serve, options->copy_bytes);
  add_json_flag(*serve, options->json);
  serve->callback([=, &action] { action = [=] { return bench_serve(*options, *on); }; });
}

constexpr char kPromptTokens[] = "--prompt-tokens", kMaxTokens[] = "--max-tokens",
               kAlpha[] = "--alpha";

template <typename T>
CLI::Option* add_range(CLI::App& command, const char* flag, std::pair<T, T>& range,
                       const std::string& what) {
  return command.add_option(flag, range, what)->delimiter(',')->type_name("LOW,HIGH");
}

template <typename T>
void check_range(const char* flag, const std::pair<T, T>& range) {
  if (!(range.first <= range.second)) {  // NaN, too
    throw CLI::ValidationError(flag, "has a LOW that is not below its HIGH; expected LOW,HIGH");
  }
}

void add_load_bench_command(CLI::App& bench, Action& action) {
  CLI::App* load = bench.add_subcommand(
      "load",
      "Latency under load in virtual time, by the server's own scheduler and planner and what its "
      "steps take; under mpirun on all ranks");
  auto options = std::make_shared<LoadBenchOptions>();
  auto on = std::make_shared<BenchDeviceOptions>();
  add_model_flags(*load, options->engine);
  add_drafter_flag(*load, options->engine);
  add_alternatives_flag(*load, options->engine);
  on->add_to(*load);
  load->add_option("--rates", options->rates,
                   "Requests a second, with commas (default 1,2,4,6,8 where no --users are given)")
      ->delimiter(',')
      ->check(number_within(kLeastRate, kMostRate));
  load->add_option("--users", options->users, "Who ask again when answered, with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  SimulatedLoad& drawn = options->load;
  load->add_option("--requests", drawn.requests, "Of a round (default 2000)")
      ->check(CLI::Range(100, 1 << 24));
  load->add_option("--rounds", options->rounds, "Of each load (default 10)")
      ->check(CLI::Range(static_cast<int>(kLeastUnits), 1 << 20));
  add_range(*load, kPromptTokens, drawn.prompt_tokens, "Drawn between (default 16,96)")
      ->check(CLI::Range(1, 1 << 20));
  add_range(*load, kMaxTokens, drawn.tokens, "Of answers, drawn between (default 64,128)")
      ->check(CLI::Range(2, 1 << 20));
  add_range(*load, kAlpha, drawn.alpha,
            "That a drafted token which is reached is accepted, drawn for each request between "
            "(default 0.2,0.7)")
      ->check(number_within(0, 1));
  load->add_option("--noise", options->noise,
                   "Of a step's time: deviation of its logarithm (default 0.1)")
      ->check(number_within(0, 1));
  add_json_flag(*load, options->json);
  load->callback([=, &action] {
    check_range(kPromptTokens, options->load.prompt_tokens);
    check_range(kMaxTokens, options->load.tokens);
    check_range(kAlpha, options->load.alpha);
    if (options->rates.empty() && options->users.empty()) options->rates = {1, 2, 4, 6, 8};
    action = [=] { return bench_load(*options, *on); };
  });
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Measure parts of Outrider on this machine");
  command->require_subcommand(1);

  add_op_command(*command, action);
  add_decode_command(*command, action);
  add_comm_command(*command, action);
  add_serve_bench_command(*command, action);
  add_load_bench_command(*command, action);

  CLI::App* tokenizer = command->add_subcommand("tokenizer", "How fast text becomes token ids");
  auto tokenizer_options = std::make_shared<TokenizerBenchOptions>();
  tokenizer->add_option("--model", tokenizer_options->model, "A Hugging Face directory")
      ->required();
  tokenizer->add_option("--text", tokenizer_options->texts, "Files to encode beside ugly inputs");
  tokenizer
      ->add_option_function<std::string>(
          "--corpus",
          [tokenizer_options](const std::string& path) { tokenizer_options->corpus = path; },
          "What tools/tokenizer_corpus.py wrote for the model; its ids are compared")
      ->check(not_empty("a file"));
  tokenizer->add_option("--repeats", tokenizer_options->repeats, "Of each input (default 5)")
      ->check(CLI::Range(1, 1 << 20));
  tokenizer->add_option("--at-least", tokenizer_options->at_least,
                        "MB/s: fails where an input is slower");
  tokenizer->callback([tokenizer_options, &action] {
    action = [tokenizer_options] { return run_tokenizer_bench(*tokenizer_options); };
  });
}

}  // namespace outrider
