// `outrider bench`: measures parts of Outrider on this machine.
#include <memory>
#include <optional>
#include <string>

#include "bench/decode_bench.h"
#include "bench/op_bench.h"
#include "bench/tokenizer_bench.h"
#include "comm/self_communicator.h"
#include "comm/world.h"
#include "launcher/command_line.h"
#include "launcher/stop_signals.h"

namespace outrider {
namespace {

int bench_decode(const DecodeBenchOptions& options) {
  if (launched_by_mpi()) {
    die_with_parent();
    World world(nullptr, nullptr);
    run_decode_bench(options, *world.make_communicator());
  } else {
    run_decode_bench(options, *make_self_communicator());
  }
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Measure parts of Outrider on this machine");
  command->require_subcommand(1);

  CLI::App* op = command->add_subcommand("op", "Each kernel against the machine's memory");
  auto op_options = std::make_shared<OpBenchOptions>();
  op->add_option("--threads", op_options->threads, "Side by side (default 1)")
      ->check(CLI::Range(1, 1024));
  op->add_option("--repeats", op_options->repeats, "Rounds over all cases (default 7)")
      ->check(CLI::Range(1, 1 << 20));
  op->add_option("--isas", op_options->isas, "Instruction sets, with commas (default all)");
  op->add_option("--only", op_options->only, "One table: stack, prefill or ops");
  op->add_flag("--json", op_options->json, "JSON instead of Markdown");
  op->callback(
      [op_options, &action] { action = [op_options] { return run_op_bench(*op_options); }; });

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

  CLI::App* decode =
      command->add_subcommand("decode", "The decode loop by parts; under mpirun on all ranks");
  auto options = std::make_shared<DecodeBenchOptions>();
  decode->add_option("--model", options->model, "A Hugging Face directory")->required();
  decode->add_option_function<std::string>(
      "--draft", [options](const std::string& path) { options->draft = path; },
      "A draft model's directory");
  decode->add_option("--context", options->context, "Tokens in the cache (default 256)")
      ->check(CLI::Range(1, 1 << 20));
  decode->add_option("--repeats", options->repeats, "Rounds over all row counts (default 15)")
      ->check(CLI::Range(1, 1 << 20));
  decode->callback([options, &action] { action = [options] { return bench_decode(*options); }; });
}

}  // namespace outrider
