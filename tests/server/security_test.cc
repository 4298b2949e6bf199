// Who may ask, and over what: TLS, mutual TLS and bearer tokens, with the clients of the program.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "launcher/client.h"
#include "server/auth_tokens.h"
#include "server/server_harness.h"
#include "server/tls.h"
#include "testing/certificates.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using grpc::StatusCode;

constexpr char kToken[] = "correct-horse-battery-staple";

// The files that the tests name.
class Files {
 public:
  Files() {
    const CertificateAndKey server = authority_.issue("server"),
                            client = authority_.issue("client");
    const TestAuthority stranger("stranger");
    const CertificateAndKey other = stranger.issue("other");
    directory_.write("ca.pem", authority_.pem());
    const CertificateAndKey weak = authority_.issue_weak("weak");
    directory_.write("weak.pem", weak.cert);
    directory_.write("weak.key", weak.key);
    directory_.write("weak-chain.pem", server.cert + weak.cert);
    directory_.write("server.pem", server.cert);
    directory_.write("server.key", server.key);
    directory_.write("client.pem", client.cert);
    directory_.write("client.key", client.key);
    directory_.write("other-ca.pem", stranger.pem());
    directory_.write("other.pem", other.cert);
    directory_.write("other.key", other.key);
    directory_.write("encrypted.key", TestAuthority::encrypted_key());
    directory_.write("tokens", std::string("# staff\n\n") + kToken + "\nsecond-token\n");
    directory_.write("wrong-token", "correct-horse-battery-stable\n");
    directory_.write("empty", "");
    directory_.write("comments", "# nobody\n\n  \n");
    directory_.write("two-words", "good-token\nnot a token\n");
    for (const auto& file : std::filesystem::directory_iterator(directory_.path())) {
      std::filesystem::permissions(file, std::filesystem::perms(0600));
    }
  }

  std::string operator()(const std::string& name) const {
    return (directory_.path() / name).string();
  }
  TlsFiles server_tls() const { return {(*this)("server.pem"), (*this)("server.key"), ""}; }

 private:
  TestAuthority authority_{"authority"};
  TemporaryDirectory directory_;
};

const Files& files() {
  static const Files files;
  return files;
}

ServerAddress at(int port) {
  ServerAddress server;
  server.port = port;
  return server;
}

grpc::Status ask(const ServerAddress& server) {
  const auto stub = v1::GenerationService::NewStub(connect_to_server(server));
  grpc::ClientContext context;
  set_timeout(context);
  v1::GenerateOnceResponse response;
  return stub->GenerateOnce(&context, greedy("Hello", 3), &response);
}

TEST(Tls, OnlyClientsThatTrustTheServerConnect) {
  ServerOptions options;
  options.tls = files().server_tls();
  RunningServer server(options);
  ServerAddress client = at(server.port());
  EXPECT_EQ(ask(client).error_code(), StatusCode::UNAVAILABLE);  // in the clear
  client.tls.ca = files()("other-ca.pem");
  EXPECT_EQ(ask(client).error_code(), StatusCode::UNAVAILABLE);
  client.tls.ca = files()("ca.pem");
  const grpc::Status status = ask(client);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(Tls, AServersNameIsChecked) {
  ServerOptions options;
  options.tls = files().server_tls();
  options.address = "127.0.0.2";
  RunningServer server(options);
  ServerAddress client = at(server.port());
  client.address = "127.0.0.2";  // the certificate is for 127.0.0.1
  client.tls.ca = files()("ca.pem");
  EXPECT_EQ(ask(client).error_code(), StatusCode::UNAVAILABLE);
}

TEST(Tls, MutualTlsWantsACertificateOfTheAuthority) {
  ServerOptions options;
  options.tls = files().server_tls();
  options.tls.ca = files()("ca.pem");
  RunningServer server(options);
  ServerAddress client = at(server.port());
  client.tls.ca = files()("ca.pem");
  EXPECT_EQ(ask(client).error_code(), StatusCode::UNAVAILABLE);  // none
  client.tls.cert = files()("other.pem");
  client.tls.key = files()("other.key");
  EXPECT_EQ(ask(client).error_code(), StatusCode::UNAVAILABLE);  // somebody else's
  client.tls.cert = files()("client.pem");
  client.tls.key = files()("client.key");
  const grpc::Status status = ask(client);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// With TLS and on plain loopback alike.
TEST(Tokens, AClientMustShowOne) {
  for (const bool tls : {false, true}) {
    ServerOptions options;
    options.auth_token_file = files()("tokens");
    if (tls) options.tls = files().server_tls();
    RunningServer server(options);
    ServerAddress client = at(server.port());
    if (tls) client.tls.ca = files()("ca.pem");
    EXPECT_EQ(ask(client).error_code(), StatusCode::UNAUTHENTICATED);
    client.auth_token_file = files()("wrong-token");
    const grpc::Status refused = ask(client);
    EXPECT_EQ(refused.error_code(), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(refused.error_message().find("stable"), std::string::npos);
    client.auth_token_file = files()("tokens");
    const grpc::Status status = ask(client);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(server.engine().stats().num_completion_tokens, 3);  // of one request
  }
}

// Every method there is, unary and streaming, by the schema: a new one is not forgotten.
TEST(Tokens, EveryMethodAsksForOneButHealth) {
  ServerOptions options;
  options.auth_token_file = files()("tokens");
  RunningServer server(options);
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      v1::GenerationService::service_full_name());
  ASSERT_NE(service, nullptr);
  ASSERT_GE(service->method_count(), 4);
  grpc::GenericStub stub(connect(server.port()));
  for (int i = 0; i < service->method_count(); ++i) {
    const auto* method = service->method(i);
    grpc::ClientContext context;
    set_timeout(context);
    grpc::CompletionQueue queue;
    const grpc::Slice nothing("");
    const auto call =
        stub.PrepareCall(&context, "/" + service->full_name() + "/" + method->name(), &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);
    call->WriteLast(grpc::ByteBuffer(&nothing, 1), {}, nullptr);
    queue.Next(&tag, &ok);
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << method->name();
  }
  EXPECT_EQ(health(server.port(), ""), 1);
}

Heard generate_as(const std::string& token, int port, const v1::GenerateRequest& request) {
  const auto stub = v1::GenerationService::NewStub(connect(port));
  grpc::ClientContext context;
  set_timeout(context);
  context.AddMetadata("authorization", "Bearer " + token);
  Heard heard;
  const auto stream = stub->Generate(&context, request);
  read_all(*stream, heard);
  return heard;
}

TEST(Tenants, ShareNoPages) {
  ServerOptions options;
  options.auth_token_file = files()("tokens");
  RunningServer server(options);
  const auto request = greedy(std::string(200, 'a'), 1);
  const auto cached = [&](const std::string& token) {
    const Heard heard = generate_as(token, server.port(), request);
    EXPECT_TRUE(heard.status.ok()) << heard.status.error_message();
    return heard.complete.cached_tokens();
  };
  EXPECT_EQ(cached(kToken), 0);
  EXPECT_GT(cached(kToken), 0);
  EXPECT_EQ(cached("second-token"), 0);
}

TEST(Tenants, AreRefusedMoreCallsThanTheyMayHave) {
  ServerOptions options;
  options.auth_token_file = files()("tokens");
  options.max_streams_per_tenant = 1;
  RunningServer server(options, false);  // calls wait
  const auto request = greedy("a", 1);
  std::thread first([&] { EXPECT_TRUE(generate_as(kToken, server.port(), request).status.ok()); });
  std::thread other(
      [&] { EXPECT_TRUE(generate_as("second-token", server.port(), request).status.ok()); });
  server.wait_for_waiting(2);
  const grpc::Status refused = generate_as(kToken, server.port(), request).status;
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  server.server().drain();
  EXPECT_EQ(generate_as(kToken, server.port(), request).status.error_code(),
            StatusCode::UNAVAILABLE);
  server.start_engine();
  first.join();
  other.join();
}

TEST(Tenants, AskAgainAsSoonAsTheyHaveTheirAnswer) {
  ServerOptions options;
  options.max_streams_per_tenant = 1;
  RunningServer server(options);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(generate(server.port(), greedy("a", 1)).status.ok());
    EXPECT_TRUE(generate_once(server.port(), greedy("a", 1)).status.ok());
  }
}

TEST(Tenants, AbortTheirOwnCallsAlone) {
  ServerOptions options;
  options.auth_token_file = files()("tokens");
  RunningServer server(options, false);
  auto request = greedy("a", 1);
  request.set_request_id("mine");
  std::thread mine([&] {
    EXPECT_EQ(generate_as(kToken, server.port(), request).status.error_code(),
              StatusCode::CANCELLED);
  });
  server.wait_for_waiting(1);
  const auto abort_as = [&](const std::string& token) {
    grpc::ClientContext context;
    set_timeout(context);
    context.AddMetadata("authorization", "Bearer " + token);
    v1::AbortRequest abort;
    abort.set_request_id("mine");
    v1::AbortResponse response;
    return v1::GenerationService::NewStub(connect(server.port()))
        ->Abort(&context, abort, &response)
        .error_code();
  };
  EXPECT_EQ(abort_as("second-token"), StatusCode::NOT_FOUND);
  EXPECT_EQ(abort_as(kToken), StatusCode::OK);
  server.start_engine();
  mine.join();
}

TEST(Tokens, ReflectionIsRefusedBesideThem) {
  ServerOptions options;
  options.port = 0;
  options.reflection = true;
  options.auth_token_file = files()("tokens");
  expect_one_line_error({"--reflection", "--auth-token-file"}, [&] { Server server(options); });
}

TEST(TokenCheck, AcceptsWhatTheFileHoldsAndNothingElse) {
  const TokenCheck check(read_token_file(files()("tokens")));
  const auto first = check.tenant(std::string("Bearer ") + kToken);
  const auto second = check.tenant("Bearer second-token");
  EXPECT_TRUE(first && second && first != second);
  EXPECT_EQ(check.tenant("bearer second-token"), second);
  for (const char* wrong :
       {"", "Bearer", "Bearer ", "second-token", "Basic second-token", "Bearer  second-token",
        "Bearer second-token ", "Bearer second-toke", "Bearer second-tokenn", "Bearer # staff",
        "Bearer correct-horse-battery-staple\nsecond-token", "Bearersecond-token"}) {
    EXPECT_FALSE(check.tenant(wrong)) << wrong;
  }
  EXPECT_TRUE(TokenCheck().tenant(""));
}

TEST(TokenFile, BadOnesAreNamed) {
  expect_one_line_error({"--auth-token-file", files()("empty"), "no token"},
                        [] { read_token_file(files()("empty")); });
  expect_one_line_error({"no token"}, [] { read_token_file(files()("comments")); });
  expect_one_line_error({"no-such-file", "No such file"}, [] { read_token_file("/no-such-file"); });
  expect_one_line_error({"--auth-token-file /", "directory"}, [] { read_token_file("/"); });
  try {
    read_token_file(files()("two-words"));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("not a token"), std::string::npos) << error.what();
  }
}

TEST(SecretFiles, ThatEverybodyMayReadAreWarnedOf) {
  TemporaryDirectory directory;
  directory.write("tokens", "some-token\n");
  const std::filesystem::path path = directory.path() / "tokens";
  const auto warning = [&](int mode) {
    std::filesystem::permissions(path, std::filesystem::perms(mode));
    std::ostringstream log;
    const auto before = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log)));
    read_token_file(path.string());
    spdlog::set_default_logger(before);
    return log.str();
  };
  EXPECT_NE(warning(0644).find(path.string() + " can be read by every user"), std::string::npos);
  EXPECT_EQ(warning(0640), "");
  EXPECT_EQ(warning(0600), "");
}

// Before anything is loaded: a server is made of its options alone.
TEST(TlsFiles, BadOnesAreNamed) {
  const auto refuses = [](const TlsFiles& tls, const std::vector<std::string>& parts) {
    ServerOptions options;
    options.port = 0;
    options.tls = tls;
    expect_one_line_error(parts, [&] { Server server(options); });
  };
  const std::string cert = files()("server.pem"), key = files()("server.key"),
                    ca = files()("ca.pem");
  refuses({cert, "", ""}, {"--tls-cert", "--tls-key"});
  refuses({"", key, ""}, {"--tls-key", "--tls-cert"});
  refuses({"", "", ca}, {"--tls-client-ca", "--tls-cert"});
  refuses({"/no-such.pem", key, ""}, {"--tls-cert /no-such.pem", "No such file"});
  refuses({cert, "/no-such.key", ""}, {"--tls-key /no-such.key", "No such file"});
  refuses({cert, key, "/no-such-ca"}, {"--tls-client-ca /no-such-ca", "No such file"});
  refuses({key, key, ""}, {"--tls-cert " + key, "no certificate", "BEGIN CERTIFICATE"});
  refuses({cert, cert, ""}, {"--tls-key " + cert, "no private key", "BEGIN PRIVATE KEY"});
  refuses({cert, files()("empty"), ""}, {"no private key"});
  refuses({cert, key, files()("empty")}, {"--tls-client-ca", "no certificate"});
  refuses({cert, files()("client.key"), ""}, {"client.key", "does not belong", "server.pem"});
  refuses({cert, files()("encrypted.key"), ""}, {"encrypted.key", "is encrypted", "password"});
  const std::string weak = files()("weak.pem");
  refuses({weak, files()("weak.key"), ""}, {"--tls-cert " + weak, "OpenSSL: ee key too small"});
  refuses({files()("weak-chain.pem"), key, ""}, {"weak-chain.pem", "OpenSSL: ca key too small"});
}

TEST(TlsFiles, AClientsAreCheckedToo) {
  ServerAddress server = at(1);
  server.tls.cert = files()("client.pem");
  server.tls.ca = files()("client.key");
  server.tls.key = files()("client.key");
  expect_one_line_error({"--tls-ca", "no certificate"}, [&] { connect_to_server(server); });
}

}  // namespace
}  // namespace outrider
