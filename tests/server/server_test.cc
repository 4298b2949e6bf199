// The gRPC service over a whole engine on a tiny checkpoint, with real clients on a real port.
#include "server/server.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "server/address.h"
#include "server/server_harness.h"
#include "testing/one_line_error.h"

namespace outrider {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

constexpr int kServing = 1, kNotServing = 2, kUnknownService = 0;

TEST(Server, AnswersInOrderAndWhole) {
  RunningServer server;
  const Heard heard = generate(server.port(), greedy("Once upon a time", 40));
  ASSERT_TRUE(heard.status.ok()) << heard.status.error_message();
  EXPECT_EQ(heard.token_ids.size(), 40u);
  EXPECT_EQ(heard.num_completes, 1);
  EXPECT_TRUE(heard.complete_was_last);
  EXPECT_GE(heard.num_chunks, 2);  // it streams
  EXPECT_EQ(heard.complete.completion_tokens(), 40);
  EXPECT_GT(heard.complete.prompt_tokens(), 0);
  EXPECT_EQ(heard.complete.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(heard.complete.speculation().mode(), "greedy");
  EXPECT_EQ(heard.complete.speculation().drafter(), "prompt_lookup");
  EXPECT_FALSE(heard.complete.speculation().numerics_fingerprint().empty());
}

TEST(Server, UnaryAnswersEqualStreamedOnes) {
  RunningServer server;
  for (const float temperature : {0.0f, 0.8f}) {
    v1::GenerateRequest request = greedy("A list of colours:", 30);
    request.mutable_sampling_params()->set_temperature(temperature);
    request.mutable_sampling_params()->set_seed(7);
    const Heard streamed = generate(server.port(), request);
    const Heard unary = generate_once(server.port(), request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    ASSERT_TRUE(unary.status.ok()) << unary.status.error_message();
    EXPECT_EQ(unary.token_ids, streamed.token_ids);
    EXPECT_EQ(unary.text, streamed.text);
    EXPECT_EQ(unary.complete.completion_tokens(), streamed.complete.completion_tokens());
    EXPECT_EQ(unary.complete.speculation().seed(), 7u);
    EXPECT_EQ(streamed.complete.speculation().seed(), 7u);
  }
}

TEST(Server, TextAndItsIdsGiveTheSameAnswer) {
  RunningServer server;
  const v1::GenerateRequest by_text = greedy("Once upon a time", 20);
  v1::GenerateRequest by_ids = by_text;
  for (const int32_t id : server.engine().tokenizer().encode("Once upon a time")) {
    by_ids.mutable_tokenized()->add_input_ids(id);
  }
  EXPECT_EQ(generate(server.port(), by_ids).token_ids, generate(server.port(), by_text).token_ids);
}

TEST(Server, ManyClientsEachGetTheirOwnWholeAnswer) {
  RunningServer server;
  constexpr int kClients = 12;
  std::vector<v1::GenerateRequest> requests;
  std::vector<Heard> alone;
  for (int i = 0; i < kClients; ++i) {
    requests.push_back(greedy("Client number " + std::to_string(i) + " says", 16 + i));
    alone.push_back(generate(server.port(), requests.back()));
  }
  std::vector<std::future<Heard>> together;
  for (int i = 0; i < kClients; ++i) {
    together.push_back(std::async(std::launch::async, [&server, &requests, i] {
      return i % 2 == 0 ? generate(server.port(), requests[i])
                        : generate_once(server.port(), requests[i]);
    }));
  }
  for (int i = 0; i < kClients; ++i) {
    const Heard heard = together[i].get();
    ASSERT_TRUE(heard.status.ok()) << heard.status.error_message();
    EXPECT_EQ(heard.token_ids, alone[i].token_ids) << i;
    EXPECT_EQ(heard.text, alone[i].text) << i;
    EXPECT_EQ(heard.complete.completion_tokens(), 16 + i);
  }
}

TEST(Server, GoesOnAfterAConnectionIsReset) {
  RunningServer server;
  for (const std::string& bytes :
       {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string(100, '\xff'), std::string()}) {
    const int fd = open_socket(server.port());
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    reset(fd);
  }
  EXPECT_TRUE(generate(server.port(), greedy("Still there", 5)).status.ok());
}

TEST(Server, RefusesAtOnceWhatIsTooMuchToWait) {
  ServerOptions options;
  options.max_waiting_requests = 2;
  RunningServer server(options, /*run_engine=*/false);
  OpenCall first(server.port(), greedy("First", 5));
  server.wait_for_waiting(1);
  OpenCall second(server.port(), greedy("Second", 5));
  server.wait_for_waiting(2);
  const Heard third = generate(server.port(), greedy("Third", 5));
  EXPECT_EQ(third.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  server.start_engine();
  EXPECT_TRUE(first.finish().status.ok());
  EXPECT_TRUE(second.finish().status.ok());
  EXPECT_TRUE(generate(server.port(), greedy("Fourth", 5)).status.ok());
}

// The limit is of answers, before the engine has taken them up as well as behind.
TEST(Server, CountsEachAnswerThatWaits) {
  ServerOptions options;
  options.max_waiting_requests = 4;
  RunningServer server(options, /*run_engine=*/false);
  v1::GenerateRequest three = greedy("Three", 5);
  sampling(three).set_n(3);
  OpenCall first(server.port(), three);
  server.wait_for_waiting(3);
  EXPECT_EQ(generate(server.port(), three).status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  OpenCall second(server.port(), greedy("One", 5));
  server.wait_for_waiting(4);
  server.start_engine();
  EXPECT_TRUE(first.finish().status.ok());
  EXPECT_TRUE(second.finish().status.ok());
  v1::GenerateRequest many = three;  // more than may wait: nobody does
  sampling(many).set_n(5);
  EXPECT_TRUE(generate(server.port(), many).status.ok());
}

// With a bound of one byte the first chunk is already too much.
TEST(Server, AStreamThatIsNotReadEndsByItself) {
  ServerOptions options;
  options.calls.max_undelivered_bytes = 1;
  RunningServer server(options);
  const Heard heard = generate(server.port(), endless("Unread"));
  EXPECT_EQ(heard.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  server.wait_until_idle();
  EXPECT_LT(server.engine().stats().num_completion_tokens, kEndlessTokens / 2);
  EXPECT_TRUE(generate_once(server.port(), greedy("Next", 5)).status.ok());
}

TEST(Server, IsUnavailableUntilTheModelIsLoaded) {
  ServerOptions options;
  options.port = 0;
  Server server(options);
  EXPECT_EQ(health(server.port(), ""), kNotServing);
  EXPECT_EQ(health(server.port(), "outrider.v1.GenerationService"), kNotServing);
  EXPECT_EQ(health(server.port(), "no.such.Service"), kUnknownService);
  const Heard heard = generate(server.port(), greedy("Early", 5));
  EXPECT_EQ(heard.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_NE(heard.status.error_message().find("loaded"), std::string::npos);
  grpc::ClientContext context;
  v1::GetModelInfoResponse info;
  EXPECT_EQ(v1::GenerationService::NewStub(connect(server.port()))
                ->GetModelInfo(&context, {}, &info)
                .error_code(),
            StatusCode::UNAVAILABLE);

  TestEngine engine(tiny_engine());
  engine.start();
  server.start_serving(engine.engine(), engine.served_model());
  EXPECT_EQ(health(server.port(), ""), kServing);
  EXPECT_EQ(health(server.port(), "outrider.v1.GenerationService"), kServing);
  EXPECT_TRUE(generate(server.port(), greedy("In time", 5)).status.ok());
  engine.stop();
  server.shutdown(milliseconds(0));
}

TEST(Server, AnEngineThatStoppedMakesCallsUnavailable) {
  RunningServer server;
  server.stop_engine();
  EXPECT_EQ(generate(server.port(), greedy("Late", 5)).status.error_code(),
            StatusCode::UNAVAILABLE);
}

TEST(Server, ALostRankEndsEveryCallWithTheReason) {
  RunningServer server({}, /*run_engine=*/false);  // as if it were stuck
  OpenCall stream(server.port(), greedy("Waits", 5));
  server.wait_for_waiting(1);
  auto unary = std::async(std::launch::async, [&server] {
    return generate_once(server.port(), greedy("Waits too", 5));
  });
  server.wait_for_waiting(2);
  server.server().fail_calls("rank 1 is lost");
  for (const Heard& heard : {stream.finish(), unary.get()}) {
    EXPECT_EQ(heard.status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_EQ(heard.status.error_message(), "rank 1 is lost");
  }
  EXPECT_EQ(health(server.port(), ""), kNotServing);
  const auto expect_refusal = [&](const std::string& why) {
    for (const Heard& late : {generate(server.port(), greedy("Comes too late", 5)),
                              generate_once(server.port(), greedy("So does this", 5))}) {
      EXPECT_EQ(late.status.error_code(), StatusCode::UNAVAILABLE) << why;
      EXPECT_EQ(late.status.error_message(), "rank 1 is lost") << why;
    }
  };
  expect_refusal("lost");
  server.server().drain();
  expect_refusal("lost, then drained");
}

TEST(Server, ALossIsToldToWhoComesWhileTheServerDrains) {
  RunningServer server;
  server.server().drain();
  EXPECT_EQ(generate(server.port(), greedy("Late", 5)).status.error_message(),
            "the server is shutting down");
  server.server().fail_calls("rank 1 is lost");
  EXPECT_EQ(generate(server.port(), greedy("Later", 5)).status.error_message(), "rank 1 is lost");
}

// The engine does not run, so nothing but shutdown() can end the calls.
TEST(Server, ShutdownLeavesNoCallOpen) {
  RunningServer server({}, /*run_engine=*/false);
  OpenCall stream(server.port(), greedy("Waits", 5));
  server.wait_for_waiting(1);
  server.server().shutdown(milliseconds(1));
  EXPECT_EQ(stream.finish().status.error_code(), StatusCode::UNAVAILABLE);
}

TEST(Server, ShutdownLetsCallsEnd) {
  RunningServer server({}, /*run_engine=*/false);
  OpenCall stream(server.port(), greedy("Waits", 5));
  server.wait_for_waiting(1);
  server.start_engine();
  server.server().shutdown(milliseconds(60'000));
  const Heard heard = stream.finish();
  EXPECT_TRUE(heard.status.ok()) << heard.status.error_message();
  EXPECT_EQ(heard.token_ids.size(), 5u);
}

TEST(Server, SaysWhatItServes) {
  RunningServer server;
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  grpc::ClientContext model_context;
  v1::GetModelInfoResponse model;
  ASSERT_TRUE(stub->GetModelInfo(&model_context, {}, &model).ok());
  EXPECT_EQ(model.name(), "tiny");
  EXPECT_EQ(model.architecture(), "LlamaForCausalLM");
  EXPECT_EQ(model.vocab_size(), 512);
  EXPECT_EQ(model.num_layers(), 2);
  EXPECT_EQ(model.max_position_embeddings(), 2048);
  EXPECT_FALSE(model.has_chat_template());

  const Heard heard = generate(server.port(), greedy("Count me", 9));
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.numerics(), "exact");
  EXPECT_EQ(info.num_ranks(), 1);
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.default_drafter(), "prompt_lookup");
  EXPECT_EQ(info.draft_model(), "");
  EXPECT_EQ(info.draft_head(), "");
  EXPECT_EQ(info.lookahead(), "adaptive");
  ASSERT_EQ(info.drafter_stats_size(), info.drafters_size());
  EXPECT_EQ(info.drafter_stats(0).drafter(), "prompt_lookup");
  EXPECT_EQ(info.limits().max_positions(), 2048);
  EXPECT_EQ(info.limits().max_speculative_tokens(), 15);
  EXPECT_EQ(info.limits().max_logit_bias(), 300);
  EXPECT_EQ(info.limits().max_waiting_requests(), 1024);
  EXPECT_EQ(info.stats().num_completion_tokens(), 9);
  EXPECT_EQ(info.numerics_fingerprint(), heard.complete.speculation().numerics_fingerprint());
}

TEST(Server, SaysWhatDrafts) {
  EngineOptions options = tiny_engine();
  options.draft = test_checkpoint("tiny-draft");
  options.draft_head = test_checkpoint("tiny-head") / "";  // as a shell completes it
  RunningServer server({}, true, options);
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.default_drafter(), "head");
  EXPECT_EQ(info.draft_model(), "tiny-draft");
  EXPECT_EQ(info.draft_head(), "tiny-head");
}

TEST(Server, APortInUseIsAnError) {
  ServerOptions options;
  options.port = 0;
  const Server first(options);
  options.port = first.port();
  expect_one_line_error({"127.0.0.1:" + std::to_string(options.port), "in use"},
                        [&] { Server second(options); });
  options.address = "localhost";  // may be more than one address; one that is taken is enough
  expect_one_line_error({"in use"}, [&] { Server second(options); });
}

TEST(Server, AnAddressThatIsNotHereIsAnError) {
  ServerOptions options;
  options.address = "192.0.2.1";  // TEST-NET-1: nobody's
  expect_one_line_error({"192.0.2.1"}, [&] { Server server(options); });
  options.address = "no such host";
  expect_one_line_error({"--address no such host"}, [&] { Server server(options); });
}

TEST(Server, KnowsLoopback) {
  for (const char* address : {"127.0.0.1", "127.3.4.5", "::1", "localhost"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "192.0.2.1", "2001:db8::1"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
}

// What server reflection lists; nullopt where there is none.
std::optional<std::string> reflected_services(int port) {
  grpc::GenericStub stub(connect(port));
  grpc::ClientContext context;
  set_timeout(context);
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(&tag);
  queue.Next(&tag, &ok);
  const grpc::Slice list_services(std::string("\x3a\x00", 2));  // field 7, an empty string
  call->WriteLast(grpc::ByteBuffer(&list_services, 1), {}, &tag);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, &tag);
  queue.Next(&tag, &ok);
  const bool answered = ok;
  grpc::Status status;
  call->Finish(&status, &tag);
  queue.Next(&tag, &ok);
  if (!answered) return std::nullopt;
  std::vector<grpc::Slice> slices;
  answer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(Server, ReflectionIsBehindItsFlag) {
  ServerOptions options;
  options.port = 0;
  const Server closed(options);
  options.reflection = true;
  const Server open(options);
  EXPECT_FALSE(reflected_services(closed.port()));
  const auto services = reflected_services(open.port());
  ASSERT_TRUE(services);
  EXPECT_NE(services->find("outrider.v1.GenerationService"), std::string::npos);
}

}  // namespace
}  // namespace outrider
