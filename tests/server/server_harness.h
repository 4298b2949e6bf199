// A whole server in this process, on a tiny checkpoint, and clients for it.
#pragma once

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/self_communicator.h"
#include "engine/engine.h"
#include "outrider/v1/generation.grpc.pb.h"
#include "server/server.h"
#include "testing/checkpoints.h"

namespace outrider {

inline std::shared_ptr<grpc::Channel> connect(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // what is not read is not taken for long either
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

// An answer as a client heard it.
struct Heard {
  grpc::Status status;
  std::string text;
  std::vector<int32_t> token_ids;
  int num_chunks = 0;
  int num_completes = 0;
  bool complete_was_last = true;
  v1::Complete complete;          // the last of them
  int64_t completion_tokens = 0;  // of all
};

inline void set_timeout(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
}

inline void read_all(grpc::ClientReader<v1::GenerateResponse>& stream, Heard& heard) {
  v1::GenerateResponse response;
  while (stream.Read(&response)) {
    if (heard.num_completes > 0) heard.complete_was_last = false;
    if (response.has_complete()) {
      ++heard.num_completes;
      heard.complete = response.complete();
      heard.completion_tokens += response.complete().completion_tokens();
      continue;
    }
    ++heard.num_chunks;
    heard.text += response.chunk().text();
    heard.token_ids.insert(heard.token_ids.end(), response.chunk().token_ids().begin(),
                           response.chunk().token_ids().end());
  }
  heard.status = stream.Finish();
}

inline Heard generate(int port, const v1::GenerateRequest& request) {
  const auto stub = v1::GenerationService::NewStub(connect(port));
  grpc::ClientContext context;
  set_timeout(context);
  Heard heard;
  const auto stream = stub->Generate(&context, request);
  read_all(*stream, heard);
  return heard;
}

inline Heard generate_once(int port, const v1::GenerateRequest& request) {
  const auto stub = v1::GenerationService::NewStub(connect(port));
  grpc::ClientContext context;
  set_timeout(context);
  v1::GenerateOnceResponse response;
  Heard heard;
  heard.status = stub->GenerateOnce(&context, request, &response);
  heard.text = response.text();
  heard.token_ids.assign(response.token_ids().begin(), response.token_ids().end());
  heard.complete = response.complete();
  return heard;
}

// A greedy request that always has max_tokens tokens.
inline v1::GenerateRequest greedy(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_sampling_params()->set_temperature(0);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.mutable_sampling_params()->set_ignore_eos(true);
  return request;
}

inline v1::SamplingParams& sampling(v1::GenerateRequest& request) {
  return *request.mutable_sampling_params();
}

// 16 answers of a token a step: far from their end when something else ends them.
constexpr int kEndlessAnswers = 16;
constexpr int64_t kEndlessTokens = kEndlessAnswers * 1900;
inline v1::GenerateRequest endless(const std::string& text) {
  v1::GenerateRequest request = greedy(text, 1900);
  sampling(request).set_n(kEndlessAnswers);
  request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
  return request;
}

inline grpc::Status abort(int port, const std::string& request_id) {
  const auto stub = v1::GenerationService::NewStub(connect(port));
  grpc::ClientContext context;
  set_timeout(context);
  v1::AbortRequest request;
  request.set_request_id(request_id);
  v1::AbortResponse response;
  return stub->Abort(&context, request, &response);
}

// A call whose client is in no hurry.
struct OpenCall {
  OpenCall(int port, const v1::GenerateRequest& request,
           std::chrono::milliseconds timeout = std::chrono::minutes(1))
      : stub(v1::GenerationService::NewStub(connect(port))) {
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    stream = stub->Generate(&context, request);
  }
  Heard finish() {
    Heard heard;
    read_all(*stream, heard);
    return heard;
  }

  std::unique_ptr<v1::GenerationService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> stream;
};

// A connection to a port of this machine.
inline int open_socket(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// Closes a connection as a crash would: with a reset.
inline void reset(int fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(fd);
}

// An engine, and the thread that runs it.
class TestEngine {
 public:
  explicit TestEngine(const EngineOptions& options, const StepObservers& observers = {})
      : backend_(make_cpu_backend()),
        communicator_(make_self_communicator()),
        executor_(options, *backend_, *communicator_),
        engine_(executor_, nullptr, observers) {}
  ~TestEngine() { stop(); }

  // Until then requests wait.
  void start() {
    thread_ = std::thread([this] { engine_.run(); });
  }
  void stop() {
    engine_.stop();
    if (thread_.joinable()) thread_.join();
  }
  Engine& engine() { return engine_; }
  ServedModel served_model() const {
    return {.name = "tiny",
            .backend = backend_->description(),
            .num_ranks = 1,
            .chat_template = ChatTemplate::load(executor_.options().model)};
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> communicator_;
  Executor executor_;
  Engine engine_;
  std::thread thread_;
};

inline EngineOptions tiny_engine() {
  EngineOptions options;
  options.model = test_checkpoint("tiny");
  return options;
}

// Health says SERVING. Requests run where `run_engine` is set, and else wait until start_engine().
class RunningServer {
 public:
  explicit RunningServer(ServerOptions options = {}, bool run_engine = true,
                         const EngineOptions& engine = tiny_engine())
      : server_(with_any_port(std::move(options))),
        engine_(engine, {.metrics = &server_.metrics(), .trace = server_.trace()}) {
    server_.start_serving(engine_.engine(), engine_.served_model());
    if (run_engine) start_engine();
  }
  ~RunningServer() {
    engine_.stop();
    server_.shutdown(std::chrono::milliseconds(0));
  }

  int port() const { return server_.port(); }
  Server& server() { return server_; }
  const Server& server() const { return server_; }
  Engine& engine() { return engine_.engine(); }
  void start_engine() { engine_.start(); }
  void stop_engine() { engine_.stop(); }

  // Returns once `count` requests wait in the engine.
  void wait_for_waiting(int64_t count) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (engine().stats().num_requests_waiting != count) {
      if (std::chrono::steady_clock::now() > give_up) {
        ADD_FAILURE() << engine().stats().num_requests_waiting << " requests wait, not " << count;
        return;
      }
      std::this_thread::yield();
    }
  }
  // Returns once the engine has nobody left and no page is in use.
  void wait_until_idle() {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < give_up) {
      const EngineStats stats = engine().stats();
      if (stats.num_requests_running == 0 && stats.num_requests_waiting == 0 &&
          stats.kv_pages_used == 0) {
        return;
      }
      std::this_thread::yield();
    }
    ADD_FAILURE() << "requests or pages are left";
  }

 private:
  static ServerOptions with_any_port(ServerOptions options) {
    options.port = 0;
    return options;
  }

  Server server_;
  TestEngine engine_;
};

// grpc.health.v1.Health/Check for `service`, whose messages are one field each: request field 1 is
// the name; response field 1 the status, 1 being SERVING and 2 NOT_SERVING. 0 where the service is
// not known.
inline int health(int port, const std::string& service) {
  std::string request;
  if (!service.empty()) {
    request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  }
  grpc::GenericStub stub(connect(port));
  grpc::ClientContext context;
  set_timeout(context);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer buffer(&slice, 1);
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", buffer, &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return 0;
  std::vector<grpc::Slice> slices;
  answer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes.size() == 2 && bytes[0] == 0x08 ? bytes[1] : 0;
}

}  // namespace outrider
