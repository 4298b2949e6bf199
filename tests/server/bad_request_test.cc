// Whatever cannot be carried out as asked is refused by the name of its field, and the server goes
// on.
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "outrider/v1/status_details.pb.h"
#include "server/server_harness.h"

namespace outrider {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using R = v1::GenerateRequest;

struct Case {
  std::string field;
  std::function<void(R&)> change;
};

v1::SpeculationParams& speculation(R& r) { return *r.mutable_speculation(); }

// As a client with a newer schema would.
void add_unknown(google::protobuf::Message& message, int number) {
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(number, 1);
}

// Every field of a number, with what no such field may hold.
std::vector<Case> bad_numbers() {
  std::vector<Case> cases;
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    const auto add = [&](const std::string& field, auto set) {
      cases.push_back({field, [set, bad](R& r) { set(r, bad); }});
    };
    add("sampling_params.temperature", [](R& r, float x) { sampling(r).set_temperature(x); });
    add("sampling_params.top_p", [](R& r, float x) { sampling(r).set_top_p(x); });
    add("sampling_params.min_p", [](R& r, float x) { sampling(r).set_min_p(x); });
    add("sampling_params.repetition_penalty",
        [](R& r, float x) { sampling(r).set_repetition_penalty(x); });
    add("sampling_params.presence_penalty",
        [](R& r, float x) { sampling(r).set_presence_penalty(x); });
    add("sampling_params.frequency_penalty",
        [](R& r, float x) { sampling(r).set_frequency_penalty(x); });
    add("sampling_params.logit_bias",
        [](R& r, float x) { (*sampling(r).mutable_logit_bias())[5] = x; });
    add("speculation.lenience", [](R& r, float x) { speculation(r).set_lenience(x); });
  }
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t bad : {kLeast, -101, kMost}) {
    const auto add = [&](const std::string& field, auto set) {
      cases.push_back({field, [set, bad](R& r) { set(r, bad); }});
    };
    add("priority", [](R& r, int32_t x) { r.set_priority(x); });
    add("tokenized.input_ids[0]", [](R& r, int32_t x) { r.mutable_tokenized()->add_input_ids(x); });
    add("emitted_token_ids[0]", [](R& r, int32_t x) { r.add_emitted_token_ids(x); });
    add("sampling_params.n", [](R& r, int32_t x) { sampling(r).set_n(x); });
    add("sampling_params.logprobs", [](R& r, int32_t x) { sampling(r).set_logprobs(x); });
    add("sampling_params.prompt_logprobs",
        [](R& r, int32_t x) { sampling(r).set_prompt_logprobs(x); });
    add("sampling_params.max_tokens", [](R& r, int32_t x) { sampling(r).set_max_tokens(x); });
    add("sampling_params.min_tokens", [](R& r, int32_t x) { sampling(r).set_min_tokens(x); });
    add("sampling_params.stop_token_ids[1]", [](R& r, int32_t x) {
      sampling(r).add_stop_token_ids(0);
      sampling(r).add_stop_token_ids(x);
    });
    add("sampling_params.logit_bias",
        [](R& r, int32_t x) { (*sampling(r).mutable_logit_bias())[x] = 1; });
    add("speculation.num_speculative_tokens",
        [](R& r, int32_t x) { speculation(r).set_num_speculative_tokens(x); });
    add("speculation.num_alternatives",
        [](R& r, int32_t x) { speculation(r).set_num_alternatives(x); });
    add("speculation.mode",
        [](R& r, int32_t x) { speculation(r).set_mode(static_cast<v1::SpeculationMode>(x)); });
    // A top_k beyond the vocabulary keeps all of it.
    if (bad < 0) add("sampling_params.top_k", [](R& r, int32_t x) { sampling(r).set_top_k(x); });
  }
  return cases;
}

void add_message(R& request, const std::string& role) {
  v1::ChatMessage& message = *request.mutable_messages()->add_messages();
  message.set_role(role);
  message.set_content("Hello");
}

// The tiny checkpoint has a vocabulary of 512 tokens, 2048 positions and no chat template.
std::vector<Case> bad_requests() {
  std::vector<Case> cases = {
      {"input", [](R& r) { r.clear_input(); }},
      {"input", [](R& r) { r.set_text(""); }},
      {"text", [](R& r) { r.set_text(std::string(3 << 20, 'a')); }},
      {"input", [](R& r) { r.set_text(std::string(100'000, '~')); }},
      {"tokenized.input_ids", [](R& r) { r.mutable_tokenized(); }},
      {"tokenized.input_ids[0]", [](R& r) { r.mutable_tokenized()->add_input_ids(-1); }},
      {"tokenized.input_ids[0]", [](R& r) { r.mutable_tokenized()->add_input_ids(512); }},
      {"tokenized.input_ids[1]",
       [](R& r) {
         r.mutable_tokenized()->add_input_ids(5);
         r.mutable_tokenized()->add_input_ids(std::numeric_limits<int32_t>::max());
       }},
      {"input", [](R& r) { r.mutable_tokenized()->mutable_input_ids()->Resize(2048, 7); }},
      {"input", [](R& r) { r.mutable_tokenized()->mutable_input_ids()->Resize(1'000'000, 7); }},
      {"request_id", [](R& r) { r.set_request_id(std::string(1000, 'x')); }},
      {"emitted_token_ids[0]", [](R& r) { r.add_emitted_token_ids(512); }},
      {"emitted_token_ids", [](R& r) { r.mutable_emitted_token_ids()->Resize(5000, 7); }},
      {"emitted_token_ids",
       [](R& r) {
         r.add_emitted_token_ids(5);
         sampling(r).set_n(2);
       }},
      {"priority", [](R& r) { r.set_priority(-101); }},
      {"priority", [](R& r) { r.set_priority(std::numeric_limits<int32_t>::min()); }},
      {"speculation.drafter",
       [](R& r) { r.mutable_speculation()->set_drafter(std::string(1 << 20, 'x')); }},
      {"77", [](R& r) { add_unknown(r, 77); }},
      {"sampling_params.50", [](R& r) { add_unknown(sampling(r), 50); }},
      {"messages.messages.9", [](R& r) { add_unknown(*r.mutable_messages()->add_messages(), 9); }},
      {"sampling_params.temperature", [](R& r) { sampling(r).set_temperature(-1); }},
      {"sampling_params.temperature", [](R& r) { sampling(r).set_temperature(kNan); }},
      {"sampling_params.temperature", [](R& r) { sampling(r).set_temperature(kInfinity); }},
      {"sampling_params.top_p", [](R& r) { sampling(r).set_top_p(0); }},
      {"sampling_params.top_p", [](R& r) { sampling(r).set_top_p(1.5f); }},
      {"sampling_params.top_p", [](R& r) { sampling(r).set_top_p(kNan); }},
      {"sampling_params.top_k", [](R& r) { sampling(r).set_top_k(-1); }},
      {"sampling_params.min_p", [](R& r) { sampling(r).set_min_p(1.1f); }},
      {"sampling_params.min_p", [](R& r) { sampling(r).set_min_p(kNan); }},
      {"sampling_params.repetition_penalty", [](R& r) { sampling(r).set_repetition_penalty(0); }},
      {"sampling_params.repetition_penalty",
       [](R& r) { sampling(r).set_repetition_penalty(kNan); }},
      {"sampling_params.presence_penalty", [](R& r) { sampling(r).set_presence_penalty(3); }},
      {"sampling_params.presence_penalty",
       [](R& r) { sampling(r).set_presence_penalty(-kInfinity); }},
      {"sampling_params.frequency_penalty", [](R& r) { sampling(r).set_frequency_penalty(-3); }},
      {"sampling_params.frequency_penalty", [](R& r) { sampling(r).set_frequency_penalty(kNan); }},
      {"sampling_params.n", [](R& r) { sampling(r).set_n(17); }},
      {"sampling_params.n", [](R& r) { sampling(r).set_n(0); }},
      {"sampling_params.n", [](R& r) { sampling(r).set_n(-1); }},
      {"sampling_params.logit_bias",
       [](R& r) { (*sampling(r).mutable_logit_bias())[1] = kInfinity; }},
      {"sampling_params.logprobs", [](R& r) { sampling(r).set_logprobs(21); }},
      {"sampling_params.logprobs", [](R& r) { sampling(r).set_logprobs(-1); }},
      {"sampling_params.prompt_logprobs", [](R& r) { sampling(r).set_prompt_logprobs(21); }},
      {"sampling_params.max_tokens", [](R& r) { sampling(r).set_max_tokens(0); }},
      {"sampling_params.max_tokens", [](R& r) { sampling(r).set_max_tokens(-5); }},
      {"sampling_params.max_tokens", [](R& r) { sampling(r).set_max_tokens(100'000'000); }},
      {"sampling_params.min_tokens", [](R& r) { sampling(r).set_min_tokens(13); }},
      {"sampling_params.logit_bias", [](R& r) { (*sampling(r).mutable_logit_bias())[512] = 1; }},
      {"sampling_params.logit_bias",
       [](R& r) {
         for (int i = 0; i < 301; ++i) (*sampling(r).mutable_logit_bias())[i] = 1;
       }},
      {"sampling_params.stop[0]", [](R& r) { sampling(r).add_stop(""); }},
      {"sampling_params.stop[0]", [](R& r) { sampling(r).add_stop(std::string(10'000, 'x')); }},
      {"sampling_params.stop",
       [](R& r) {
         for (int i = 0; i < 10'000; ++i) sampling(r).add_stop(std::string(1, 'x'));
       }},
      {"sampling_params.stop_token_ids[0]", [](R& r) { sampling(r).add_stop_token_ids(-2); }},
      {"sampling_params.stop_token_ids[0]", [](R& r) { sampling(r).add_stop_token_ids(512); }},
      {"sampling_params.stop_token_ids",
       [](R& r) { sampling(r).mutable_stop_token_ids()->Resize(1000, 1); }},
      {"speculation.mode",
       [](R& r) { speculation(r).set_mode(static_cast<v1::SpeculationMode>(77)); }},
      {"speculation.drafter", [](R& r) { speculation(r).set_drafter("no_such_drafter"); }},
      {"speculation.drafter", [](R& r) { speculation(r).set_drafter("model"); }},
      {"speculation.drafter", [](R& r) { speculation(r).set_drafter(""); }},
      {"speculation.num_speculative_tokens",
       [](R& r) { speculation(r).set_num_speculative_tokens(16); }},
      {"speculation.num_speculative_tokens",
       [](R& r) { speculation(r).set_num_speculative_tokens(-1); }},
      {"speculation.tpot_slo_ms", [](R& r) { speculation(r).set_tpot_slo_ms(0); }},
      {"speculation.num_speculative_tokens",
       [](R& r) { speculation(r).set_num_speculative_tokens(100'000); }},
      {"speculation.num_speculative_tokens",
       [](R& r) {
         speculation(r).set_mode(v1::SPECULATION_MODE_OFF);
         speculation(r).set_num_speculative_tokens(4);
       }},
      // The default drafter of a server without others copies.
      {"speculation.num_alternatives", [](R& r) { speculation(r).set_num_alternatives(1); }},
      {"speculation.num_alternatives",
       [](R& r) {
         speculation(r).set_drafter("ngram");
         speculation(r).set_num_alternatives(1);
       }},
      {"speculation.num_alternatives",
       [](R& r) {
         sampling(r).set_logprobs(0);
         speculation(r).set_drafter("random");
         speculation(r).set_num_alternatives(1);
       }},
      {"speculation.num_alternatives",
       [](R& r) {
         sampling(r).set_temperature(1);
         sampling(r).set_seed(1);
         speculation(r).set_mode(v1::SPECULATION_MODE_REJECTION);
         speculation(r).set_drafter("random");
         speculation(r).set_num_alternatives(1);
       }},
      {"speculation.num_alternatives",
       [](R& r) {
         speculation(r).set_mode(v1::SPECULATION_MODE_OFF);
         speculation(r).set_num_alternatives(1);
       }},
      {"speculation.num_alternatives",
       [](R& r) {
         speculation(r).set_drafter("random");
         speculation(r).set_num_speculative_tokens(12);
         speculation(r).set_num_alternatives(4);
       }},
      {"messages.messages[1].role",
       [](R& r) {
         add_message(r, "user");
         add_message(r, "tool");
       }},
      // More than a client's gRPC takes in a status.
      {"messages.messages[0].role", [](R& r) { add_message(r, std::string(20'000, 'u')); }},
      {"messages.messages",
       [](R& r) {
         for (int i = 0; i < 100'000; ++i) r.mutable_messages()->add_messages();
       }},
      {"speculation.lenience", [](R& r) { speculation(r).set_lenience(0); }},
      {"speculation.lenience", [](R& r) { speculation(r).set_lenience(-0.5f); }},
      {"speculation.lenience", [](R& r) { speculation(r).set_lenience(1.0001f); }},
      {"speculation.lenience",
       [](R& r) {
         speculation(r).set_mode(v1::SPECULATION_MODE_COUPLED);
         speculation(r).set_lenience(0.5f);
       }},
      {"speculation.lenience",
       [](R& r) {
         sampling(r).set_temperature(1);
         sampling(r).set_seed(1);
         speculation(r).set_lenience(0.5f);
       }},
      {"speculation.lenience",
       [](R& r) {
         speculation(r).set_num_speculative_tokens(0);
         speculation(r).set_lenience(0.5f);
       }},
  };
  for (Case& numbers : bad_numbers()) cases.push_back(std::move(numbers));
  return cases;
}

// The field in the google.rpc.BadRequest detail of a status.
std::string violated_field(const grpc::Status& status) {
  v1::StatusDetails details;
  v1::BadRequest bad_request;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1 ||
      details.code() != status.error_code() || details.message() != status.error_message() ||
      details.details(0).type_url() != "type.googleapis.com/google.rpc.BadRequest" ||
      !bad_request.ParseFromString(details.details(0).value()) ||
      bad_request.field_violations_size() != 1) {
    return "";
  }
  return bad_request.field_violations(0).field();
}

TEST(BadRequest, IsRefusedByNameAndTheServerGoesOn) {
  RunningServer server;
  const R good = greedy("The quick brown fox", 12);
  const Heard before = generate(server.port(), good);
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();
  const auto all = bad_requests();
  EXPECT_GE(all.size(), 100u);
  for (size_t i = 0; i < all.size(); ++i) {
    R request = good;
    all[i].change(request);
    for (const Heard& heard :
         {generate(server.port(), request), generate_once(server.port(), request)}) {
      const grpc::Status& status = heard.status;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << "case " << i << ", " << all[i].field << ": " << status.error_message();
      EXPECT_EQ(status.error_message().rfind(all[i].field + " ", 0), 0u)
          << "case " << i << ", " << all[i].field << ": " << status.error_message();
      EXPECT_EQ(violated_field(status), all[i].field) << "case " << i;
      EXPECT_EQ(heard.num_chunks, 0) << "case " << i;
    }
  }
  const Heard after = generate(server.port(), good);
  ASSERT_TRUE(after.status.ok()) << after.status.error_message();
  EXPECT_EQ(after.token_ids, before.token_ids);
  EXPECT_EQ(after.text, before.text);
}

TEST(BadRequest, ValuesThatChangeNothingAreAccepted) {
  RunningServer server;
  const R plain = greedy("The quick brown fox", 8);
  R request = plain;
  sampling(request).set_min_p(0);
  sampling(request).set_repetition_penalty(1);
  sampling(request).set_presence_penalty(0);
  sampling(request).set_frequency_penalty(0);
  sampling(request).set_n(1);
  sampling(request).set_min_tokens(0);
  speculation(request).set_num_alternatives(0);
  speculation(request).set_lenience(1);
  speculation(request).set_mode(v1::SPECULATION_MODE_REJECTION);
  request.set_priority(-100);
  sampling(request).set_top_k(std::numeric_limits<int32_t>::max());
  sampling(request).set_top_p(std::numeric_limits<float>::denorm_min());
  for (int i = 0; i < 16; ++i) sampling(request).add_stop("no such text");
  const Heard heard = generate(server.port(), request);
  ASSERT_TRUE(heard.status.ok()) << heard.status.error_message();
  EXPECT_EQ(heard.token_ids, generate(server.port(), plain).token_ids);

  // The best token alone, whatever else is left, by candidates or by all logits.
  sampling(request).set_temperature(1);
  for (const int top_k : {2, 200, 0}) {
    sampling(request).set_top_k(top_k);
    for (const auto mode : {v1::SPECULATION_MODE_REJECTION, v1::SPECULATION_MODE_COUPLED}) {
      speculation(request).set_mode(mode);
      const Heard best = generate(server.port(), request);
      ASSERT_TRUE(best.status.ok()) << best.status.error_message();
      EXPECT_EQ(best.token_ids, heard.token_ids) << top_k << " " << mode;
    }
  }
}

TEST(BadRequest, AChatNeedsATemplate) {
  RunningServer server;
  R request = greedy("", 4);
  add_message(request, "user");
  EXPECT_EQ(generate(server.port(), request).status.error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(BadRequest, WhatATerminalWouldObeyIsToldInEscapes) {
  RunningServer server;
  R request = greedy("Hello", 4);
  speculation(request).set_drafter("\n\x1b[31m");
  const std::string message = generate(server.port(), request).status.error_message();
  EXPECT_NE(message.find(R"(is "\n\033[31m"; expected one)"), std::string::npos) << message;
}

TEST(BadRequest, InvalidUtf8IsRefusedBeforeAnyHandler) {
  RunningServer server;
  // What gRPC makes of a request that it cannot parse.
  EXPECT_EQ(generate(server.port(), greedy("\xff\xfe", 4)).status.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(generate(server.port(), greedy("fine", 4)).status.ok());
}

// It could be of any size once it is decompressed.
TEST(BadRequest, ACompressedMessageIsRefused) {
  RunningServer server;
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    set_timeout(context);
    context.set_compression_algorithm(algorithm);
    v1::GenerateOnceResponse response;
    const grpc::Status status =
        stub->GenerateOnce(&context, greedy(std::string(100'000, 'a'), 1), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
    EXPECT_NE(status.error_message().find("ompression algorithm"), std::string::npos)
        << status.error_message();
  }
  EXPECT_TRUE(generate(server.port(), greedy("As it is", 5)).status.ok());
}

TEST(BadRequest, AMessageBeyondTheLimitIsRefused) {
  ServerOptions options;
  options.max_message_bytes = 1 << 20;
  RunningServer server(options);
  EXPECT_EQ(generate(server.port(), greedy(std::string(2 << 20, 'a'), 4)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(generate(server.port(), greedy("fine", 4)).status.ok());
}

}  // namespace
}  // namespace outrider
