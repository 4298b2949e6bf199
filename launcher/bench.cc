// `outrider bench`: measures parts of Outrider on this machine.
#include <memory>
#include <optional>
#include <string>

#include "bench/decode_bench.h"
#include "bench/device_op_bench.h"
#include "bench/op_bench.h"
#include "bench/tokenizer_bench.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/self_communicator.h"
#include "comm/world.h"
#include "launcher/command_line.h"
#include "launcher/device_selection.h"
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

BenchDevice open_bench_device(BenchDeviceOptions options, LocalRank local) {
  BenchDevice device = {.name = "cpu"};
  if (options.device == "cpu") {
    device.backend = make_cpu_backend();
    return device;
  }
  options.gpus.device = DeviceOptions::Device::cuda;
  const DeviceChoice choice = choose_device(options.gpus, local, cuda_devices(), "");
  open_cuda_device(*choice.gpu);
  device.name = choice.name;
  device.gpu = true;
  device.backend = make_cuda_backend(*choice.gpu);
  return device;
}

int bench_decode(const DecodeBenchOptions& options, const BenchDeviceOptions& on) {
  if (!launched_by_mpi()) {
    BenchDevice device = open_bench_device(on, {});
    run_decode_bench(options, device,
                     *(device.gpu ? make_nccl_communicator(0, 1, "") : make_self_communicator()));
    return 0;
  }
  die_with_parent();
  World world(nullptr, nullptr);
  if (on.device == "cuda" && world.size() > 1) check_nccl_library();
  BenchDevice device = open_bench_device(on, {world.local_rank(), world.local_size()});
  if (on.gpus.share_gpus) let_nccl_share_devices(world.local_rank());
  run_decode_bench(options, device,
                   *(device.gpu ? make_nccl_communicator(world) : world.make_communicator()));
  return 0;
}

// Rows, ascending as they are given or not; the first is what others are compared with.
CLI::Option* add_rows(CLI::App& command, std::vector<int64_t>& rows, const std::string& what) {
  return command.add_option("--rows", rows, what)->delimiter(',')->check(CLI::Range(1, 16));
}

void add_copy_flag(CLI::App& command, size_t& bytes) {
  command
      .add_option_function<size_t>(
          "--copy-mib", [&bytes](size_t mib) { bytes = mib << 20; },
          "Size of the copy that says what a GPU's memory delivers (default 1024)")
      ->check(CLI::Range(1, 1 << 16));
}

void add_op_command(CLI::App& bench, Action& action) {
  CLI::App* op = bench.add_subcommand("op", "Each kernel against the machine's memory");
  auto options = std::make_shared<OpBenchOptions>();
  auto device_options = std::make_shared<DeviceOpBenchOptions>();
  auto on = std::make_shared<BenchDeviceOptions>();
  on->add_to(*op);
  op->add_option("--repeats", options->repeats, "Rounds over all cases (default 7)")
      ->check(CLI::Range(1, 1 << 20));
  op->add_option_function<std::string>(
      "--json", [options](const std::string& path) { options->json = path; },
      "A file for the results, as Google Benchmark writes them");
  const std::string cpu = "On the CPU: ", cuda = "On a GPU: ";
  op->add_option("--threads", options->threads, cpu + "side by side (default 1)")
      ->check(CLI::Range(1, 1024));
  op->add_option("--isas", options->isas, cpu + "instruction sets, with commas (default all)");
  op->add_option("--only", options->only, cpu + "one table: stack, prefill or ops");
  op->add_option("--shape", device_options->shapes,
                 cuda + "files with fields of a config.json, as for plan");
  add_rows(*op, device_options->rows, cuda + "1 … 16, with commas (default 1,4,5,8,16)");
  op->add_option("--contexts", device_options->contexts,
                 cuda + "tokens in the cache, with commas (default 1024,8192)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  add_copy_flag(*op, device_options->copy_bytes);
  op->callback([=, &action] {
    action = [=] {
      if (on->device == "cpu") return run_op_bench(*options);
      device_options->repeats = options->repeats;
      device_options->json = options->json;
      BenchDevice device = open_bench_device(*on, {});
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
  decode->add_option_function<std::string>(
      "--draft", [options](const std::string& path) { options->draft = path; },
      "A draft model's directory");
  on->add_to(*decode);
  decode->add_option("--context", options->context, "Tokens in the cache (default 256)")
      ->check(CLI::Range(1, 1 << 20));
  add_rows(*decode, options->rows, "Of a step, with commas (default 1,2,3,4,5,6,7,8,9,12,16)");
  decode->add_option("--repeats", options->repeats, "Rounds over all row counts (default 15)")
      ->check(CLI::Range(1, 1 << 20));
  add_copy_flag(*decode, options->copy_bytes);
  decode->add_option_function<std::string>(
      "--json", [options](const std::string& path) { options->json = path; },
      "A file for the results, as Google Benchmark writes them");
  decode->callback([=, &action] { action = [=] { return bench_decode(*options, *on); }; });
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Measure parts of Outrider on this machine");
  command->require_subcommand(1);

  add_op_command(*command, action);
  add_decode_command(*command, action);

  CLI::App* tokenizer = command->add_subcommand("tokenizer", "How fast text becomes token ids");
  auto tokenizer_options = std::make_shared<TokenizerBenchOptions>();
  tokenizer->add_option("--model", tokenizer_options->model, "A Hugging Face directory")
      ->required();
  tokenizer->add_option("--text", tokenizer_options->texts, "Files to encode beside ugly inputs");
  tokenizer->add_option_function<std::string>(
      "--corpus",
      [tokenizer_options](const std::string& path) { tokenizer_options->corpus = path; },
      "What tools/tokenizer_corpus.py wrote for the model; its ids are compared");
  tokenizer->add_option("--repeats", tokenizer_options->repeats, "Of each input (default 5)")
      ->check(CLI::Range(1, 1 << 20));
  tokenizer->add_option("--at-least", tokenizer_options->at_least,
                        "MB/s: fails where an input is slower");
  tokenizer->callback([tokenizer_options, &action] {
    action = [tokenizer_options] { return run_tokenizer_bench(*tokenizer_options); };
  });
}

}  // namespace outrider
