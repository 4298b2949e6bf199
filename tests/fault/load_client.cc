// A client for the fault tests: keeps streams running, watches the server's health, and prints what
// it sees, a line an event, with the time on CLOCK_MONOTONIC in nanoseconds.
//
//   load_client HOST:PORT STREAMS MAX_TOKENS [ANSWERS]
//
//   NS health STATUS    1: SERVING, 2: NOT_SERVING, 0: the watch has ended
//   NS running          every stream has its first tokens
//   NS done N DIGEST    a call has ended well, with N tokens
//   NS failed CODE MESSAGE
//
// Each stream asks again after each answer, ANSWERS times (0, the default: for ever), and ends with
// the first call that fails. The program ends when all streams have, and the watch. With no streams
// it waits for a server that serves, and asks it once.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "outrider/v1/generation.grpc.pb.h"

namespace {

namespace v1 = outrider::v1;

constexpr int kServing = 1, kNever = -1;
constexpr int kConnectMs = 2000;  // that an attempt to connect may take

std::mutex output_mutex;

void print(const std::string& event) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const std::lock_guard lock(output_mutex);
  std::printf("%lld %s\n", static_cast<long long>(std::chrono::nanoseconds(now).count()),
              event.c_str());
  std::fflush(stdout);
}

// A channel of its own for each user, that looks for the server often.
std::shared_ptr<grpc::Channel> connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // What is not read is hardly taken either: the calls of a client that was stopped stay open.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8192);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// grpc.health.v1.Health/Watch, whose messages are one field each: an empty request is all of the
// server; response field 1 is the status. Returns at the first status `until`, or with the watch's
// end; true for the former.
bool watch_health(const std::string& address, int until) {
  grpc::GenericStub stub(connect(address));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, "/grpc.health.v1.Health/Watch", &queue);
  call->StartCall(nullptr);
  bool going = next();
  const grpc::Slice nothing("", 0);
  if (going) {
    call->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), nullptr);
    going = next();
  }
  int status = 0;
  while (going && status != until) {
    grpc::ByteBuffer response;
    call->Read(&response, nullptr);
    going = next();
    grpc::Slice slice;
    if (!going || !response.DumpToSingleSlice(&slice).ok()) break;
    status = slice.size() == 2 ? slice.begin()[1] : 0;
    print("health " + std::to_string(status));
  }
  if (status == until) {
    context.TryCancel();
  } else {
    print("health 0");
  }
  grpc::Status end;
  call->Finish(&end, nullptr);
  next();
  return status == until;
}

// A stream that says "running" with its first tokens, if it is the last to have some.
class Stream {
 public:
  explicit Stream(std::atomic<int>& not_running) : not_running_(not_running) {}

  void has_tokens() {
    if (!std::exchange(running_, true) && --not_running_ == 0) print("running");
  }

 private:
  std::atomic<int>& not_running_;
  bool running_ = false;
};

// One answer; false where the call failed.
bool ask(const std::string& address, int max_tokens, Stream& stream) {
  const auto stub = v1::GenerationService::NewStub(connect(address));
  v1::GenerateRequest request;
  request.set_text("Once upon a time");
  request.mutable_sampling_params()->set_temperature(0);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.mutable_sampling_params()->set_ignore_eos(true);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  int tokens = 0;
  uint32_t digest = 2166136261u;  // FNV-1a, a token at a time
  while (reader->Read(&response)) {
    for (const int32_t id : response.chunk().token_ids()) {
      digest = (digest ^ static_cast<uint32_t>(id)) * 16777619u;
      ++tokens;
    }
    stream.has_tokens();
  }
  const grpc::Status status = reader->Finish();
  print(status.ok()
            ? "done " + std::to_string(tokens) + " " + std::to_string(digest)
            : "failed " + std::to_string(status.error_code()) + " " + status.error_message());
  return status.ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: load_client HOST:PORT STREAMS MAX_TOKENS [ANSWERS]\n");
    return 2;
  }
  const std::string address = argv[1];
  const int num_streams = std::atoi(argv[2]);
  const int max_tokens = std::atoi(argv[3]);
  const int num_answers = argc > 4 ? std::atoi(argv[4]) : 0;
  std::atomic<int> not_running = num_streams;
  if (num_streams == 0) {
    while (!watch_health(address, kServing)) continue;  // it was an old server's end
    Stream stream(not_running);
    return ask(address, max_tokens, stream) ? 0 : 1;
  }
  std::vector<std::thread> threads;
  threads.emplace_back([&] { watch_health(address, kNever); });
  for (int i = 0; i < num_streams; ++i) {
    threads.emplace_back([&] {
      Stream stream(not_running);
      for (int n = 0; n < num_answers || num_answers == 0; ++n) {
        if (!ask(address, max_tokens, stream)) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
