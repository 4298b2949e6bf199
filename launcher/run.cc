// `outrider run`: one answer in this process, without a server.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "core/error.h"
#include "engine/engine.h"
#include "launcher/answer_printer.h"
#include "launcher/command_line.h"
#include "launcher/device_selection.h"
#include "launcher/engine_flags.h"
#include "launcher/request_flags.h"
#include "model/chat_template.h"
#include "server/request_conversion.h"
#include "server/response_conversion.h"
#include "spec/drafters.h"

namespace outrider {
namespace {

struct RunOptions {
  EngineOptions engine;
  DefaultDrafts default_drafts;
  DeviceOptions device;
  RequestFlags request;
  AnswerFormat format;
};

// Prints what it hears and stops the engine at the end.
class PrintingSink final : public RequestSink {
 public:
  PrintingSink(const AnswerFormat& format, int n, Engine& engine)
      : printer_(format, n), engine_(engine) {}

  void on_chunk(Chunk chunk) override { printer_.chunk(to_proto(chunk)); }
  void on_complete(Completion completion) override {
    printer_.complete(to_proto(completion));
    if (completion.last) engine_.stop();
  }
  void on_error(absl::Status status) override {
    printer_.cut_off();
    status_ = std::move(status);
    engine_.stop();
  }
  bool cancelled() const override { return false; }

  const absl::Status& status() const { return status_; }

 private:
  AnswerPrinter printer_;
  Engine& engine_;
  absl::Status status_;
};

int print_failure(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str());
  return kExitFailed;
}

int run(const RunOptions& options, const v1::GenerateRequest& asked) {
  EngineOptions engine_options = options.engine;
  const v1::SpeculationParams& speculation = asked.speculation();
  const auto drafter = drafter_from_name(speculation.drafter());
  if (speculation.mode() != v1::SPECULATION_MODE_OFF) {
    options.default_drafts.choose(engine_options, drafter);
  }
  // What is out of its range is refused below.
  engine_options.max_sequences = std::clamp(asked.sampling_params().n(), 1, Limits().max_choices);
  engine_options.prefill_beside = engine_options.prefill_chunk;  // nobody else to wait for it
  const RankDevice device =
      open_device(options.device, engine_options, visible_gpus(options.device), {}, 0, 1);
  engine_options.kv_cache_tokens = device.kv_cache_tokens;
  if (device.choice.gpu) {
    std::fprintf(stderr, "outrider: computing %s\n", device.choice.reason.c_str());
  }
  const auto communicator = make_lone_communicator(device.choice.gpu.has_value());
  const ChatTemplate chat_template = ChatTemplate::load(options.engine.model);
  Executor executor(engine_options, *device.backend, *communicator);
  Engine engine(executor, nullptr);

  const auto request =
      to_request(asked, make_request_context(engine.tokenizer(), chat_template, engine.limits()));
  if (!request.ok()) return print_failure(request.status());
  const auto sink = std::make_shared<PrintingSink>(options.format, request->sampling.n, engine);
  engine.submit(*request, sink);
  engine.run();
  return sink->status().ok() ? 0 : print_failure(sink->status());
}

}  // namespace

void add_run_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Answer one prompt without a server");
  add_model_flags(*command, options->engine);
  options->default_drafts.add_to(*command);
  add_device_flags(*command, options->device);
  options->request.add_to(*command);
  options->format.add_to(*command);
  command->callback([options, &action] {
    v1::GenerateRequest request = options->request.request();
    // Other names are refused with the request.
    const auto drafter = drafter_from_name(request.speculation().drafter());
    if (drafter && drafter != DrafterKind::model && !options->default_drafts.look_for(*drafter)) {
      try {
        check_drafter(*drafter, options->engine.drafter_files());
      } catch (const Error& error) {
        throw CLI::ValidationError(error.what());
      }
    }
    action = [options, request = std::move(request)] { return run(*options, request); };
  });
}

}  // namespace outrider
