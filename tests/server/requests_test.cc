// What a request may ask for, through gRPC.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "server_harness.h"

namespace outrider {
namespace {

v1::SpeculationParams& speculation(v1::GenerateRequest& request) {
  return *request.mutable_speculation();
}

TEST(Requests, SeveralAnswersComeByIndex) {
  RunningServer server;
  v1::GenerateRequest request = greedy("The quick brown fox", 10);
  sampling(request).set_temperature(1);
  sampling(request).set_seed(3);
  const Heard alone = generate(server.port(), request);
  sampling(request).set_n(3);

  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  grpc::ClientContext unary_context, stream_context;
  set_timeout(unary_context);
  set_timeout(stream_context);
  v1::GenerateOnceResponse whole;
  ASSERT_TRUE(stub->GenerateOnce(&unary_context, request, &whole).ok());
  ASSERT_EQ(whole.others_size(), 2);
  EXPECT_EQ(whole.text(), alone.text);
  EXPECT_NE(whole.others(0).text(), whole.text());

  std::string texts[3];
  int completes[3] = {};
  const auto stream = stub->Generate(&stream_context, request);
  for (v1::GenerateResponse response; stream->Read(&response);) {
    if (response.has_chunk()) texts[response.chunk().index()] += response.chunk().text();
    if (response.has_complete()) ++completes[response.complete().index()];
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(texts[0], whole.text());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(completes[i], 1);
    if (i == 0) continue;
    EXPECT_EQ(texts[i], whole.others(i - 1).text());
    EXPECT_EQ(whole.others(i - 1).complete().index(), i);
  }
}

TEST(Requests, ASeedGivesOneAnswerWhateverIsDrafted) {
  RunningServer server;
  v1::GenerateRequest request = greedy("one two three one two three one two", 30);
  sampling(request).set_temperature(0.9f);
  sampling(request).set_seed(7);
  speculation(request).set_mode(v1::SPECULATION_MODE_OFF);
  const Heard off = generate(server.port(), request);
  ASSERT_TRUE(off.status.ok()) << off.status.error_message();
  EXPECT_EQ(off.complete.speculation().mode(), "off");
  for (const auto mode : {v1::SPECULATION_MODE_UNSPECIFIED, v1::SPECULATION_MODE_COUPLED}) {
    speculation(request).set_mode(mode);
    for (const int k : {0, 1, 3, 6}) {
      for (const char* const drafter : {"prompt_lookup", "random"}) {
        speculation(request).set_num_speculative_tokens(k);
        speculation(request).set_drafter(drafter);
        const Heard heard = generate(server.port(), request);
        EXPECT_EQ(heard.token_ids, off.token_ids) << k << " by " << drafter;
        EXPECT_EQ(heard.complete.speculation().mode(), k == 0 ? "off" : "coupled");
      }
    }
  }
  speculation(request).set_mode(v1::SPECULATION_MODE_REJECTION);
  EXPECT_EQ(generate(server.port(), request).complete.speculation().mode(), "rejection");
}

TEST(Requests, LenienceIsToldWithWhatItDid) {
  RunningServer server;
  v1::GenerateRequest request = greedy("one two three one two three one two", 60);
  sampling(request).set_temperature(1);
  sampling(request).set_seed(3);
  speculation(request).set_mode(v1::SPECULATION_MODE_REJECTION);
  speculation(request).set_drafter("random");
  speculation(request).set_num_speculative_tokens(4);
  const Heard exact = generate(server.port(), request);
  EXPECT_EQ(exact.complete.speculation().lenience(), 1.0f);
  EXPECT_EQ(exact.complete.speculation().lenience_shift(), 0.0);
  speculation(request).set_lenience(0.25f);
  const Heard lenient = generate(server.port(), request);
  ASSERT_TRUE(lenient.status.ok()) << lenient.status.error_message();
  EXPECT_EQ(lenient.complete.speculation().lenience(), 0.25f);
  EXPECT_GT(lenient.complete.speculation().lenience_shift(), 0.0);
  EXPECT_LE(lenient.complete.speculation().lenience_shift(), 0.75);  // at most 1 - l
  EXPECT_GT(lenient.complete.speculation().alpha(), exact.complete.speculation().alpha());
}

// What the theory says of an answer, and whether its objective was met, as clients hear it.
TEST(Requests, AnswersTellWhatSpeculationBrought) {
  RunningServer server;
  v1::GenerateRequest request = greedy("one two three one two three one two", 40);
  speculation(request).set_drafter("random");
  speculation(request).set_num_speculative_tokens(3);
  const auto plain = generate(server.port(), request).complete.speculation();
  EXPECT_FALSE(plain.has_tpot_slo_ms());
  EXPECT_FALSE(plain.tpot_slo_missed());
  EXPECT_GT(plain.predicted_speedup(), 0);
  EXPECT_LT(plain.predicted_speedup(), 1);  // it guesses nothing, and its rows are not free
  EXPECT_GT(plain.measured_speedup(), 0);
  EXPECT_GT(plain.draft_cost(), 0);
  ASSERT_EQ(plain.steps_by_lookahead_size(), 16);
  EXPECT_GT(plain.steps_by_lookahead(3), 30);
  for (const double objective : {1e-3, 1e6}) {
    speculation(request).set_tpot_slo_ms(objective);
    const Heard heard = generate(server.port(), request);
    ASSERT_TRUE(heard.status.ok()) << heard.status.error_message();
    EXPECT_EQ(heard.complete.speculation().tpot_slo_ms(), objective);
    EXPECT_EQ(heard.complete.speculation().tpot_slo_missed(), objective < 1);
    EXPECT_EQ(heard.complete.completion_tokens(), 40);
  }
}

TEST(Requests, LogprobsComeWithTheirTokens) {
  RunningServer server;
  v1::GenerateRequest request = greedy("The quick brown fox", 10);
  sampling(request).set_logprobs(2);
  sampling(request).set_prompt_logprobs(0);
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  grpc::ClientContext context;
  set_timeout(context);
  v1::GenerateOnceResponse whole;
  ASSERT_TRUE(stub->GenerateOnce(&context, request, &whole).ok());
  ASSERT_EQ(whole.logprobs_size(), 10);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(whole.logprobs(i).token_id(), whole.token_ids(i));
    ASSERT_EQ(whole.logprobs(i).top_size(), 2);
    EXPECT_EQ(whole.logprobs(i).top(0).token_id(), whole.token_ids(i));
    EXPECT_LT(whole.logprobs(i).logprob(), 0);
  }
  EXPECT_EQ(whole.prompt_logprobs_size(), whole.complete().prompt_tokens() - 1);
}

// Each option does what it says, and what it does is the same whatever is drafted.
TEST(Requests, SamplingOptionsReachTheirAnswer) {
  RunningServer server;
  const v1::GenerateRequest plain = greedy("The quick brown fox", 16);
  const auto ask = [&](auto change) {
    v1::GenerateRequest request = plain;
    change(sampling(request));
    const Heard heard = generate(server.port(), request);
    EXPECT_TRUE(heard.status.ok()) << heard.status.error_message();
    request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
    EXPECT_EQ(generate(server.port(), request).token_ids, heard.token_ids);
    return heard.token_ids;
  };
  const auto before = ask([](v1::SamplingParams&) {});
  const int32_t first = before.at(0);
  const auto count = [](const std::vector<int32_t>& tokens, int32_t token) {
    return std::count(tokens.begin(), tokens.end(), token);
  };

  EXPECT_EQ(count(ask([&](auto& s) { (*s.mutable_logit_bias())[first] = -100; }), first), 0);
  EXPECT_EQ(count(ask([&](auto& s) { (*s.mutable_logit_bias())[first] = 100; }), first), 16);
  // Less likely each time, or once it was there; below 0, likelier.
  const auto begins_with_it = [&](auto change) {
    return ask([&](auto& s) {
      (*s.mutable_logit_bias())[first] = 8;
      change(s);
    });
  };
  const auto often = count(begins_with_it([](auto&) {}), first);
  EXPECT_LT(count(begins_with_it([](auto& s) { s.set_frequency_penalty(2); }), first), often);
  EXPECT_LT(count(begins_with_it([](auto& s) { s.set_repetition_penalty(100); }), first), often);
  EXPECT_GE(count(begins_with_it([](auto& s) { s.set_presence_penalty(-2); }), first), often);
  // What ends the answer at once ends it behind min_tokens others.
  const auto ends_at = [&](int min_tokens) {
    return ask([&](auto& s) {
      s.add_stop_token_ids(first);
      (*s.mutable_logit_bias())[first] = 100;
      s.set_min_tokens(min_tokens);
    });
  };
  EXPECT_EQ(ends_at(0).size(), 1u);
  EXPECT_EQ(ends_at(5).size(), 6u);
  EXPECT_EQ(ends_at(16).size(), 16u);
  // min_p 1 leaves the likeliest token alone, at any temperature.
  EXPECT_EQ(ask([](auto& s) { s.set_temperature(2), s.set_min_p(1), s.set_seed(1); }), before);
}

TEST(Requests, AnInterruptedAnswerGoesOn) {
  RunningServer server;
  v1::GenerateRequest request = greedy("The quick brown fox", 30);
  const Heard whole = generate(server.port(), request);
  for (int i = 0; i < 12; ++i) request.add_emitted_token_ids(whole.token_ids[i]);
  const Heard rest = generate(server.port(), request);
  ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(rest.token_ids,
            std::vector<int32_t>(whole.token_ids.begin() + 12, whole.token_ids.end()));
}

TEST(Requests, AbortEndsTheCallsOfThatName) {
  RunningServer server;
  v1::GenerateRequest request = endless("The quick brown fox");
  request.set_request_id("the long one");
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  grpc::ClientContext context;
  set_timeout(context);
  const auto stream = stub->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));  // it runs

  const auto abort = [&](const std::string& id, v1::AbortResponse& answer) {
    grpc::ClientContext abort_context;
    set_timeout(abort_context);
    v1::AbortRequest which;
    which.set_request_id(id);
    return stub->Abort(&abort_context, which, &answer);
  };
  v1::AbortResponse answer;
  EXPECT_EQ(abort("another one", answer).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(abort("", answer).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(abort("the long one", answer).ok());
  EXPECT_EQ(answer.num_aborted(), 1);
  Heard rest;
  read_all(*stream, rest);
  EXPECT_TRUE(rest.status.ok());
  EXPECT_EQ(rest.complete.finish_reason(), v1::FINISH_REASON_CANCELLED);
}

// Most of them have not begun, yet what the first has is kept.
TEST(Requests, AbortKeepsWhatAnswersHave) {
  EngineOptions one_slot = tiny_engine();
  one_slot.max_sequences = 1;
  one_slot.kv_cache_tokens = 2 * kEndlessTokens;  // one slot's would be too few for 16 answers
  RunningServer server({}, /*run_engine=*/true, one_slot);
  v1::GenerateRequest request = endless("The quick brown fox");
  request.set_request_id("many");
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  v1::GenerateOnceResponse whole;
  grpc::Status status;
  std::thread client([&] {
    grpc::ClientContext context;
    set_timeout(context);
    status = stub->GenerateOnce(&context, request, &whole);
  });
  while (server.engine().stats().num_completion_tokens < 20) std::this_thread::yield();
  grpc::ClientContext context;
  set_timeout(context);
  v1::AbortRequest which;
  which.set_request_id("many");
  v1::AbortResponse aborted;
  EXPECT_TRUE(stub->Abort(&context, which, &aborted).ok());
  client.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(whole.token_ids_size(), 0);
  ASSERT_EQ(whole.others_size(), 15);
  EXPECT_EQ(whole.others(14).complete().finish_reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(whole.others(14).token_ids_size(), 0);
}

TEST(Requests, AnAnswerTooLargeForOneMessageIsRefused) {
  ServerOptions options;
  options.calls.max_answer_bytes = 100;
  RunningServer server(options);
  const Heard heard = generate_once(server.port(), greedy("The quick brown fox", 500));
  EXPECT_EQ(heard.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(generate(server.port(), greedy("The quick brown fox", 500)).status.ok());
}

}  // namespace
}  // namespace outrider
