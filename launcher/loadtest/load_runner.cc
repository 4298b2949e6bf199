// See load_runner.h.
#include "launcher/loadtest/load_runner.h"

#include <cstdio>
#include <string>
#include <utility>

namespace outrider {
namespace {

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

}  // namespace

LoadRunner::LoadRunner(const LoadtestOptions& options, Connections& connections,
                       StopSignals& signals)
    : options_(options), connections_(connections), signals_(signals) {
  signals_.on_stop([this](StopRequest) {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (running_ != nullptr) running_->stop();
  });
}

LoadRunner::~LoadRunner() { signals_.on_stop({}); }

LoadResult LoadRunner::run(LoadPlan plan, Questions& questions,
                           std::optional<int32_t> num_speculative_tokens) {
  if (stopped()) return {.interrupted = true};
  const int64_t first = num_sent_;
  const auto ask = [&]() {
    const Question question = questions.next();
    LoadGenerator::Ask ask{question.prompt, request(question)};
    ask.request.set_request_id("loadtest-" + std::to_string(num_sent_++));
    if (num_speculative_tokens) {
      ask.request.mutable_speculation()->set_num_speculative_tokens(*num_speculative_tokens);
    }
    return ask;
  };
  LoadGenerator generator(connections_, std::move(plan), ask,
                          {.timeout_s = options_.timeout(),
                           .progress_every_s = options_.progress_every_s,
                           .on_progress = progress_printer()});
  {
    const std::lock_guard lock(mutex_);
    running_ = &generator;
    if (stopped_) generator.stop();
  }
  LoadResult result = generator.run();
  {
    const std::lock_guard lock(mutex_);
    running_ = nullptr;
  }
  for (RequestRecord& record : result.records) record.index += first;
  return result;
}

bool LoadRunner::stopped() {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

v1::GenerateRequest LoadRunner::request(const Question& question) const {
  v1::GenerateRequest request = question.input_ids.empty()
                                    ? options_.request.request_for(question.text)
                                    : options_.request.request_for(question.input_ids);
  request.mutable_sampling_params()->set_max_tokens(question.max_tokens);
  // Beside a seed the server refuses lenience, and draws by `rejection` with a fixed K alone.
  const v1::SpeculationParams& speculation = request.speculation();
  const bool may_repeat = speculation.mode() != v1::SPECULATION_MODE_REJECTION &&
                          (!speculation.has_lenience() || speculation.lenience() == 1);
  if (may_repeat) request.mutable_sampling_params()->set_seed(question.seed);
  return request;
}

}  // namespace outrider
