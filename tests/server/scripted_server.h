// ScriptedServer: a gRPC server in this process that stalls, fails or lies as a test says.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/client.h"

namespace outrider {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// What a call answers: chunks of tokens, a complete that counts them (and tells what else it is
// to), a status.
struct Script {
  std::vector<std::vector<int32_t>> chunks = {{1}, {2, 3}};
  grpc::Status status = grpc::Status::OK;
  int64_t completion_tokens = 3;  // negative: no complete
  v1::Complete complete = {};
};

class ScriptedCall final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  // Once; from then on gRPC owns it.
  void answer(const Script& script) {
    for (const auto& tokens : script.chunks) {
      auto* chunk = messages_.emplace_back().mutable_chunk();
      chunk->mutable_token_ids()->Add(tokens.begin(), tokens.end());
    }
    if (script.completion_tokens >= 0 && script.status.ok()) {
      auto* complete = messages_.emplace_back().mutable_complete();
      *complete = script.complete;
      complete->set_completion_tokens(script.completion_tokens);
    }
    status_ = script.status;
    next();
  }
  void OnWriteDone(bool) override { next(); }
  void OnDone() override { delete this; }

 private:
  void next() {
    if (written_ == messages_.size()) return Finish(status_);
    StartWrite(&messages_[written_++]);
  }

  std::vector<v1::GenerateResponse> messages_;
  size_t written_ = 0;
  grpc::Status status_;
};

// Answers as `script` says, but holds every call until `hold_until` of them have come.
class ScriptedServer final : public v1::GenerationService::CallbackService {
  using Held = std::vector<std::pair<ScriptedCall*, int64_t>>;

 public:
  explicit ScriptedServer(
      std::function<Script(int64_t index)> script = [](int64_t) { return Script(); },
      int64_t hold_until = 0)
      : script_(std::move(script)), hold_until_(hold_until) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedServer() override {
    release();
    server_->Shutdown();
  }

  ServerAddress address() const { return {.port = port_}; }

  void wait_for_calls(int64_t count) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return num_calls_ >= count; });
  }
  int64_t num_calls() {
    const std::lock_guard lock(mutex_);
    return num_calls_;
  }
  // In the order in which they came.
  std::vector<v1::GenerateRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  // One for each connection.
  std::set<std::string> peers() {
    const std::lock_guard lock(mutex_);
    return peers_;
  }
  int64_t most_at_once() {
    const std::lock_guard lock(mutex_);
    return most_held_;
  }

  // From now on it answers nobody.
  void freeze() {
    const std::lock_guard lock(mutex_);
    hold_until_ = std::numeric_limits<int64_t>::max();
  }

  // What is held is answered, and nothing is held any more.
  void release() {
    Held held;
    {
      const std::lock_guard lock(mutex_);
      hold_until_ = 0;
      held.swap(held_);
    }
    answer(held);
  }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto* call = new ScriptedCall;
    Held answered;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(*request);
      peers_.insert(context->peer());
      held_.emplace_back(call, num_calls_++);
      most_held_ = std::max(most_held_, static_cast<int64_t>(held_.size()));
      if (num_calls_ >= hold_until_) answered.swap(held_);
      arrived_.notify_all();
    }
    answer(answered);
    return call;
  }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::GetServerInfoResponse* response) override {
    response->set_num_ranks(7);
    response->set_lookahead("fixed:3");
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest*,
                                         v1::GetModelInfoResponse* response) override {
    response->set_vocab_size(11);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  void answer(const Held& held) {
    for (const auto& [call, index] : held) call->answer(script_(index));
  }

  const std::function<Script(int64_t)> script_;
  int port_ = 0;
  std::mutex mutex_;  // guards all below
  std::condition_variable arrived_;
  int64_t hold_until_;
  int64_t num_calls_ = 0, most_held_ = 0;
  std::vector<v1::GenerateRequest> requests_;
  std::set<std::string> peers_;
  Held held_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace outrider
