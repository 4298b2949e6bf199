// Clients that misbehave, and neighbours who do not notice.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/metrics.h"
#include "server/server_harness.h"
#include "testing/edited_checkpoint.h"

namespace outrider {
namespace {

// Hands on what one client and the server say, until cut() resets both connections.
class Relay {
 public:
  explicit Relay(int server_port) {
    EXPECT_EQ(listen(listener_, 1), 0);  // on a port of the system's choice
    thread_ = std::thread([this, server_port] {
      client_ = accept(listener_, nullptr, nullptr);
      server_ = open_socket(server_port);
      while (!cut_) pump();
    });
  }
  ~Relay() { close(listener_); }

  int port() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  void cut() {
    cut_ = true;
    thread_.join();
    reset(client_);
    reset(server_);
  }

 private:
  void pump() {
    constexpr int kPollMs = 10;  // between looks at cut_
    std::array<pollfd, 2> ends = {pollfd{client_, POLLIN, 0}, pollfd{server_, POLLIN, 0}};
    poll(ends.data(), ends.size(), kPollMs);
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].revents == 0) continue;
      const ssize_t count = read(ends[i].fd, buffer_.data(), buffer_.size());
      if (count > 0) send(ends[1 - i].fd, buffer_.data(), count, MSG_NOSIGNAL);
    }
  }

  const int listener_ = socket(AF_INET, SOCK_STREAM, 0);
  int client_ = -1, server_ = -1;
  std::array<char, 4096> buffer_;
  std::atomic<bool> cut_ = false;
  std::thread thread_;
};

// The request `good`, asked again and again while offend() goes on, is answered as it is `alone`.
// Returns how many tokens its answers had.
int64_t expect_same_beside(RunningServer& server, const v1::GenerateRequest& good,
                           const Heard& alone, const std::string& name,
                           const std::function<void()>& offend) {
  const int64_t made_before = server.engine().stats().num_completion_tokens;
  std::atomic<bool> over = false;
  int64_t heard = 0;
  std::thread neighbour([&] {
    do {
      const Heard beside = generate(server.port(), good);
      EXPECT_TRUE(beside.status.ok()) << name << ": " << beside.status.error_message();
      EXPECT_EQ(beside.token_ids, alone.token_ids) << "beside " << name;
      heard += static_cast<int64_t>(beside.token_ids.size());
    } while (!over);
  });
  while (server.engine().stats().num_completion_tokens == made_before) std::this_thread::yield();
  offend();
  over = true;
  neighbour.join();
  return heard;
}

// While somebody misbehaves in each of these ways, a stream goes on as it does alone.
TEST(Neighbours, OfBadOnesGetTheSameTokens) {
  ServerOptions options;
  options.max_message_bytes = 1 << 20;
  options.calls.max_undelivered_bytes = 512 << 10;
  RunningServer server(options);
  const v1::GenerateRequest good = greedy("The quick brown fox", 300);
  const Heard alone = generate(server.port(), good);
  ASSERT_TRUE(alone.status.ok());

  using Code = grpc::StatusCode;
  const auto status_of = [&](v1::GenerateRequest request) {
    return generate(server.port(), request).status.error_code();
  };
  const std::vector<std::pair<const char*, std::function<void()>>> offenders = {
      {"an over-long prompt",
       [&] { EXPECT_EQ(status_of(greedy(std::string(100'000, '~'), 5)), Code::INVALID_ARGUMENT); }},
      {"10,000 stop strings",
       [&] {
         v1::GenerateRequest request = greedy("a", 5);
         for (int i = 0; i < 10'000; ++i) sampling(request).add_stop(std::to_string(i));
         EXPECT_EQ(status_of(request), Code::INVALID_ARGUMENT);
       }},
      {"a message over the limit",
       [&] {
         EXPECT_EQ(status_of(greedy(std::string(2 << 20, 'a'), 5)), Code::RESOURCE_EXHAUSTED);
       }},
      {"a deadline that passes",
       [&] {
         OpenCall late(server.port(), endless("b"), std::chrono::milliseconds(10));
         EXPECT_EQ(late.finish().status.error_code(), Code::DEADLINE_EXCEEDED);
       }},
      {"text that is not UTF-8",
       [&] { EXPECT_EQ(status_of(greedy("\xff\xfe", 5)), Code::UNIMPLEMENTED); }},
      {"a client that never reads",
       [&] {
         v1::GenerateRequest request = endless("b");  // some 7 MB; gRPC itself buffers 4
         sampling(request).set_logprobs(20);
         OpenCall lazy(server.port(), request);
         const std::string refusal =
             "outrider_request_errors_total{code=\"RESOURCE_EXHAUSTED\"} 1\n";
         while (server.server().metrics().text().find(refusal) == std::string::npos &&
                std::chrono::system_clock::now() < lazy.context.deadline()) {
           std::this_thread::yield();
         }
         EXPECT_EQ(lazy.finish().status.error_code(), Code::RESOURCE_EXHAUSTED);
       }},
      {"a connection that is reset in the middle of an answer",
       [&] {
         Relay relay(server.port());
         OpenCall call(relay.port(), endless("b"));
         v1::GenerateResponse response;
         EXPECT_TRUE(call.stream->Read(&response));
         relay.cut();
         EXPECT_EQ(call.finish().status.error_code(), Code::UNAVAILABLE);
       }},
      {"connections that say nothing, or nothing that means anything",
       [&] {
         std::vector<int> sockets;
         for (int i = 0; i < 200; ++i) {
           sockets.push_back(open_socket(server.port()));
           const std::string bytes = i % 3 == 0   ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                                     : i % 3 == 1 ? "GET / HTTP/1.1\r\n\r\n"
                                                  : "";
           send(sockets.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
         }
         EXPECT_EQ(status_of(greedy("c", 5)), Code::OK);
         for (const int fd : sockets) close(fd);
       }},
      {"a client that goes away",
       [&] {
         OpenCall call(server.port(), endless("b"));
         v1::GenerateResponse response;
         EXPECT_TRUE(call.stream->Read(&response));
         call.context.TryCancel();
         EXPECT_EQ(call.stream->Finish().error_code(), Code::CANCELLED);
       }},
      {"many at once, sampled, greedy and drafted",
       [&] {
         std::vector<std::thread> clients;
         for (int i = 0; i < 12; ++i) {
           clients.emplace_back([&, i] {
             v1::GenerateRequest request = greedy(std::string(i + 1, 'c'), 40);
             sampling(request).set_temperature(i % 2 == 0 ? 0.0f : 1.2f);
             request.mutable_speculation()->set_drafter(i % 3 == 0 ? "random" : "prompt_lookup");
             EXPECT_EQ(status_of(request), Code::OK);
           });
         }
         for (std::thread& client : clients) client.join();
       }},
  };
  for (const auto& [name, offend] : offenders) {
    const int64_t made_before = server.engine().stats().num_completion_tokens;
    const int64_t heard = expect_same_beside(server, good, alone, name, offend);
    server.wait_until_idle();
    EXPECT_LT(server.engine().stats().num_completion_tokens - made_before - heard, kEndlessTokens)
        << name << ": came to its end";
  }
}

TEST(Neighbours, OfWhatTheKvCacheCannotHoldGetTheSameTokens) {
  EngineOptions small = tiny_engine();
  small.kv_cache_tokens = 4096;
  RunningServer server({}, true, small);
  v1::GenerateRequest good = greedy("The quick brown fox", 1900);
  good.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
  const Heard alone = generate(server.port(), good);
  ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
  expect_same_beside(server, good, alone, "16 answers of 2,000 tokens", [&] {
    v1::GenerateRequest request = greedy("a", 2000);
    sampling(request).set_n(16);
    for (const Heard& heard :
         {generate(server.port(), request), generate_once(server.port(), request)}) {
      EXPECT_EQ(heard.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    }
  });
}

TEST(Neighbours, OfLogitsThatAreNotFiniteGetTheSameTokens) {
  constexpr int32_t kPoison = 300;  // nowhere in `good` and its answer
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  EngineOptions poisoned;
  poisoned.model = model.path();
  RunningServer server({}, true, poisoned);
  v1::GenerateRequest good = greedy("1, 2, 3, 4", 1900);
  good.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
  const Heard alone = generate(server.port(), good);
  ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
  expect_same_beside(server, good, alone, "NaNs", [&] {
    v1::GenerateRequest request = greedy("", 20);
    for (const int32_t id : {5, 6, kPoison}) request.mutable_tokenized()->add_input_ids(id);
    for (const Heard& heard :
         {generate(server.port(), request), generate_once(server.port(), request)}) {
      EXPECT_EQ(heard.status.error_code(), grpc::StatusCode::INTERNAL);
      EXPECT_NE(heard.status.error_message().find("hold a NaN or an infinity at position 3"),
                std::string::npos)
          << heard.status.error_message();
      EXPECT_TRUE(heard.token_ids.empty());
    }
  });
}

}  // namespace
}  // namespace outrider
