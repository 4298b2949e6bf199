// Runs requests through a whole engine, its ranks being threads of this process.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "backend/backend.h"
#include "comm/control_channel.h"
#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "engine/engine.h"
#include "engine/follower.h"
#include "testing/checkpoints.h"

namespace outrider {

struct CollectedAnswer {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TokenOrigin> origins;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  std::map<int, std::vector<int32_t>> choices;  // token ids by index
  std::vector<Chunk> chunks;
  std::optional<Completion> completion;
  absl::Status status;
};

// Collects one answer. Stops the engine when the last of `expected` has ended.
class CollectingSink final : public RequestSink {
 public:
  CollectingSink(CollectedAnswer& answer, Engine& engine, std::atomic<int>& left)
      : answer_(answer), engine_(engine), left_(left) {}

  void on_chunk(Chunk chunk) override {
    std::vector<int32_t>& choice = answer_.choices[chunk.index];
    choice.insert(choice.end(), chunk.token_ids.begin(), chunk.token_ids.end());
    answer_.logprobs.insert(answer_.logprobs.end(), chunk.logprobs.begin(), chunk.logprobs.end());
    answer_.prompt_logprobs.insert(answer_.prompt_logprobs.end(), chunk.prompt_logprobs.begin(),
                                   chunk.prompt_logprobs.end());
    answer_.text += chunk.text;
    answer_.token_ids.insert(answer_.token_ids.end(), chunk.token_ids.begin(),
                             chunk.token_ids.end());
    answer_.origins.insert(answer_.origins.end(), chunk.origins.begin(), chunk.origins.end());
    answer_.chunks.push_back(std::move(chunk));
  }
  void on_complete(Completion completion) override {
    const bool last = completion.last;
    answer_.completion = std::move(completion);
    if (last) end();
  }
  void on_error(absl::Status status) override {
    answer_.status = std::move(status);
    end();
  }
  // Asked by the engine before each step, and by nobody else here: so the step at which a request
  // goes does not depend on how fast its tokens are delivered.
  bool cancelled() const override { return cancel_after > 0 && ++num_asked_ > cancel_after; }

  int cancel_after = 0;  // steps; 0: never

 private:
  void end() {
    if (--left_ == 0) engine_.stop();
  }

  CollectedAnswer& answer_;
  Engine& engine_;
  std::atomic<int>& left_;
  mutable int num_asked_ = 0;  // the engine's thread's
};

// Rank 0's part: runs the requests on an engine and says goodbye to the other ranks. All are queued
// before the first step. stats: of the engine, at the end. cancel_after[i], where given: request i
// is cancelled after that many steps.
inline std::vector<CollectedAnswer> lead_requests(Executor& executor, ControlServer* control,
                                                  const std::vector<Request>& requests,
                                                  const std::vector<int>& cancel_after = {},
                                                  EngineStats* stats = nullptr) {
  std::vector<CollectedAnswer> answers(requests.size());
  Engine engine(executor, control);
  std::atomic<int> left = static_cast<int>(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    auto sink = std::make_shared<CollectingSink>(answers[i], engine, left);
    if (i < cancel_after.size()) sink->cancel_after = cancel_after[i];
    engine.submit(requests[i], sink);
  }
  engine.run();
  if (stats != nullptr) *stats = engine.stats();
  if (control != nullptr) control->goodbye();
  return answers;
}

// A small model, and its draft model.
inline EngineOptions tiny_options() {
  return {.model = test_checkpoint("tiny"), .draft = test_checkpoint("tiny-draft")};
}

// What the ranks compute on. No make_communicator: the threads' own, over host memory.
struct Device {
  std::function<std::unique_ptr<Backend>(int rank)> make_backend = [](int) {
    return make_cpu_backend();
  };
  std::function<std::unique_ptr<Communicator>(int rank, int size)> make_communicator;
};

// lead_requests, over ranks that are threads.
inline std::vector<CollectedAnswer> run_requests(const EngineOptions& options, int num_ranks,
                                                 const std::vector<Request>& requests,
                                                 const std::vector<int>& cancel_after = {},
                                                 EngineStats* stats = nullptr,
                                                 const Device& device = {}) {
  std::vector<CollectedAnswer> answers;
  const std::string secret = make_control_secret();
  std::optional<ControlServer> control;
  if (num_ranks > 1) control.emplace(num_ranks - 1, secret);
  run_thread_ranks(num_ranks, [&](Communicator& threads) {
    const int rank = threads.rank();
    const auto backend = device.make_backend(rank);
    std::unique_ptr<Communicator> own;
    if (device.make_communicator) own = device.make_communicator(rank, num_ranks);
    Executor executor(options, *backend, own ? *own : threads);
    if (rank > 0) {
      ControlClient client(control->address(), rank, secret);
      run_follower(executor, client);
      return;
    }
    if (control) control->accept_all(std::chrono::seconds(60));
    answers = lead_requests(executor, control ? &*control : nullptr, requests, cancel_after, stats);
  });
  return answers;
}

// `length` token ids below 257, of which phrases recur: prompt_lookup has something to copy.
inline std::vector<int32_t> recurring_prompt(int length, int seed) {
  std::vector<int32_t> ids;
  uint32_t x = 12345u + static_cast<uint32_t>(seed) * 7919u;
  for (int i = 0; i < length; ++i) {
    x = x * 1664525u + 1013904223u;
    ids.push_back(i % 7 < 4 ? 100 + i % 7 : static_cast<int32_t>(x >> 24) + 1);
  }
  return ids;
}

// Goes on to max_tokens whatever comes.
inline Request greedy_request(int prompt_length, int seed, int max_tokens, int k,
                              const std::string& drafter) {
  Request request;
  request.prompt = recurring_prompt(prompt_length, seed);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.speculation.num_speculative_tokens = k;
  request.speculation.drafter = drafter;
  return request;
}

}  // namespace outrider
