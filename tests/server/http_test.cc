// The HTTP port: what it answers, to whom, and what it bears.
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/server_harness.h"
#include "testing/certificates.h"
#include "testing/edited_checkpoint.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

ServerOptions with_http() {
  ServerOptions options;
  options.port = 0;
  options.http_port = 0;
  return options;
}

httplib::Result get(int port, const std::string& path, const httplib::Headers& headers = {}) {
  return httplib::Client("127.0.0.1", port).Get(path, headers);
}

TEST(Http, IsReadyOnceTheModelIs) {
  Server server(with_http());
  const int port = server.http_port();
  EXPECT_EQ(get(port, "/healthz")->status, 200);
  EXPECT_EQ(get(port, "/readyz")->status, 503);
  EXPECT_EQ(get(port, "/readyz")->body, "the model is still being loaded\n");
  EXPECT_EQ(get(port, "/metrics")->status, 200);

  TestEngine engine(tiny_engine());
  engine.start();
  server.start_serving(engine.engine(), engine.served_model());
  EXPECT_EQ(get(port, "/readyz")->status, 200);
  server.drain();
  EXPECT_EQ(get(port, "/readyz")->status, 503);
  EXPECT_EQ(get(port, "/readyz")->body, "the server is draining\n");
  server.fail_calls("rank 1 is lost");
  EXPECT_EQ(get(port, "/readyz")->status, 503);
  EXPECT_EQ(get(port, "/readyz")->body, "rank 1 is lost\n");
  engine.stop();
  server.shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(get(port, "/readyz")->body, "the server is shutting down\n");
  EXPECT_EQ(get(port, "/healthz")->status, 200);
}

TEST(Http, MetricsCountWhatClientsHear) {
  RunningServer server(with_http());
  ASSERT_TRUE(generate(server.port(), greedy("Count me", 9)).status.ok());
  ASSERT_TRUE(generate_once(server.port(), greedy("Count me too", 5)).status.ok());
  v1::GenerateRequest bad = greedy("Bad", 5);
  bad.mutable_sampling_params()->set_top_p(7);
  EXPECT_EQ(generate(server.port(), bad).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto answer = get(server.server().http_port(), "/metrics");
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"outrider_request_success_total{finished_reason=\"length\"} 2",
        "outrider_request_errors_total{code=\"INVALID_ARGUMENT\"} 1",
        "outrider_time_to_first_token_seconds_count 2",
        "outrider_e2e_request_latency_seconds_count 2", "outrider_num_requests_waiting 0",
        "outrider_rank_up{rank=\"0\"} 1", "# TYPE outrider_step_seconds histogram"}) {
    EXPECT_NE(answer->body.find(std::string(line) + "\n"), std::string::npos) << line;
  }
}

double metric(const RunningServer& server, const std::string& name) {
  const std::string text = "\n" + get(server.server().http_port(), "/metrics")->body;
  const size_t at = text.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name;
  return std::stod(text.substr(at + name.size() + 2));
}

// As the answers themselves say: each over its own tokens, and only those that it made.
TEST(Http, TimesATokenOfEachAnswer) {
  RunningServer server(with_http());
  const std::string tpot = "outrider_time_per_output_token_seconds";
  const std::string e2e = "outrider_e2e_request_latency_seconds";
  v1::GenerateRequest request = greedy("Count me", 9);
  const Heard whole = generate(server.port(), request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  double sum = whole.complete.timings().decode_ms() / 1e3 / 8;
  EXPECT_NEAR(metric(server, tpot + "_sum"), sum, 1e-9);

  for (int i = 0; i < 6; ++i) request.add_emitted_token_ids(whole.token_ids[i]);
  const Heard rest = generate(server.port(), request);
  ASSERT_EQ(rest.token_ids.size(), 3u) << rest.status.error_message();
  sum += rest.complete.timings().decode_ms() / 1e3 / 2;
  EXPECT_NEAR(metric(server, tpot + "_sum"), sum, 1e-9);
  EXPECT_EQ(metric(server, tpot + "_count"), 2);

  const double e2e_before = metric(server, e2e + "_sum");
  request = greedy("Count us", 9);
  sampling(request).set_n(4);
  OpenCall call(server.port(), request);
  v1::GenerateResponse response;
  double last_ms = 0;
  while (call.stream->Read(&response)) {
    if (!response.has_complete()) continue;
    sum += response.complete().timings().decode_ms() / 1e3 / 8;
    last_ms = std::max(last_ms, response.complete().timings().total_ms());
  }
  EXPECT_TRUE(call.stream->Finish().ok());
  EXPECT_EQ(metric(server, tpot + "_count"), 6);
  EXPECT_NEAR(metric(server, tpot + "_sum"), sum, 1e-9);
  EXPECT_EQ(metric(server, e2e + "_count"), 3);
  EXPECT_NEAR(metric(server, e2e + "_sum") - e2e_before, last_ms / 1e3, 1e-9);
}

TEST(Http, PagesAreInUseWhileSomebodyUsesThem) {
  RunningServer server(with_http());
  OpenCall call(server.port(), endless("Cancelled"));
  v1::GenerateResponse first;
  ASSERT_TRUE(call.stream->Read(&first));
  EXPECT_GT(metric(server, "outrider_kv_cache_usage_ratio"), 0);
  call.context.TryCancel();
  while (metric(server, "outrider_num_requests_running") > 0) std::this_thread::yield();
  EXPECT_EQ(metric(server, "outrider_kv_cache_usage_ratio"), 0);
}

TEST(Http, PrefixCacheIsCountedAsServerInfoCountsIt) {
  RunningServer server(with_http());
  const auto request = greedy(std::string(100, 'p'), 2);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(generate(server.port(), request).status.ok());
  const EngineStats stats = server.engine().stats();
  EXPECT_GT(stats.prefix_cache_hits, 0);
  EXPECT_EQ(metric(server, "outrider_prefix_cache_queries_total"), stats.prefix_cache_queries);
  EXPECT_EQ(metric(server, "outrider_prefix_cache_hits_total"), stats.prefix_cache_hits);
}

// What drafted, how well and how much of its budget is left: the same by both ways.
TEST(Http, DraftersAreReportedAsServerInfoReportsThem) {
  const Int8Checkpoint model(test_checkpoint("tiny"));
  EngineOptions options = tiny_engine();
  options.model = model.path();
  options.draft = model.path();  // the target itself
  RunningServer server(with_http(), true, options);
  v1::GenerateRequest request = greedy("Count me", 9);
  request.mutable_speculation()->set_drafter("model");
  request.mutable_speculation()->set_num_speculative_tokens(3);
  request.mutable_speculation()->set_num_alternatives(2);
  ASSERT_TRUE(generate(server.port(), request).status.ok());
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  for (const v1::DrafterStats& drafter : info.drafter_stats()) {
    const bool drafted = drafter.drafter() == "model";
    EXPECT_EQ(drafter.num_drafts() > 0, drafted) << drafter.drafter();
    EXPECT_EQ(drafter.num_alternative_draft_tokens(), 2 * drafter.num_drafts());
    EXPECT_EQ(drafter.alpha(), drafted ? 1 : 0) << drafter.drafter();
    EXPECT_EQ(drafter.draft_cost() > 0, drafted || drafter.drafter() == "random");
    const std::string label = "{drafter=\"" + drafter.drafter() + "\"";
    EXPECT_EQ(metric(server, "outrider_spec_decode_alpha" + label + "}"), drafter.alpha());
    EXPECT_TRUE(drafter.has_draft_cost());
    EXPECT_NEAR(metric(server, "outrider_spec_decode_draft_cost" + label + "}"),
                drafter.draft_cost(), 1e-9);
    EXPECT_NEAR(metric(server, "outrider_spec_decode_loss_budget_seconds" + label + "}"),
                drafter.loss_budget_ms() / 1e3, 1e-9);
    EXPECT_EQ(drafter.has_measured_speedup(), drafted);
    EXPECT_EQ(drafter.has_predicted_speedup(), drafted);
    if (!drafted) continue;
    EXPECT_NEAR(metric(server, "outrider_spec_decode_speedup" + label + ",kind=\"measured\"}"),
                drafter.measured_speedup(), 1e-9);
    EXPECT_NEAR(metric(server, "outrider_spec_decode_speedup" + label + ",kind=\"predicted\"}"),
                drafter.predicted_speedup(), 1e-9);
    EXPECT_EQ(metric(server, "outrider_spec_decode_num_draft_tokens_total"),
              drafter.num_draft_tokens());
    EXPECT_EQ(metric(server, "outrider_spec_decode_num_accepted_tokens_total"),
              drafter.num_accepted_draft_tokens());
    EXPECT_EQ(drafter.num_accepted_draft_tokens(),
              drafter.num_draft_tokens() - drafter.num_alternative_draft_tokens());
  }
}

TEST(Http, OtherRequestsAreRefused) {
  const Server server(with_http());
  httplib::Client client("127.0.0.1", server.http_port());
  EXPECT_EQ(client.Get("/")->status, 404);
  EXPECT_EQ(client.Get("/metrics/../etc/passwd")->status, 404);
  EXPECT_EQ(client.Post("/metrics", "x", "text/plain")->status, 405);
  EXPECT_EQ(client.Delete("/metrics")->status, 405);
  EXPECT_EQ(client.Head("/healthz")->status, 200);
  EXPECT_EQ(client.Get("/healthz?verbose")->status, 200);
}

TEST(Http, MetricsAskForATokenAndProbesDoNot) {
  TemporaryDirectory directory;
  directory.write("tokens", "the-token\n");
  ServerOptions options = with_http();
  options.auth_token_file = (directory.path() / "tokens").string();
  const Server server(options);
  const int port = server.http_port();
  EXPECT_EQ(get(port, "/healthz")->status, 200);
  EXPECT_EQ(get(port, "/readyz")->status, 503);
  EXPECT_EQ(get(port, "/metrics")->status, 401);
  EXPECT_EQ(get(port, "/nothing")->status, 401);
  EXPECT_EQ(get(port, "/metrics", {{"Authorization", "Bearer another"}})->status, 401);
  EXPECT_EQ(get(port, "/metrics", {{"Authorization", "Bearer the-token"}})->status, 200);
}

TEST(Http, SpeaksTheSameTls) {
  TemporaryDirectory directory;
  const TestAuthority authority("authority"), stranger("stranger");
  const auto write = [&](const std::string& name, const CertificateAndKey& pair) {
    directory.write(name + ".pem", pair.cert);
    directory.write(name + ".key", pair.key);
  };
  write("server", authority.issue("server"));
  write("client", authority.issue("client"));
  write("other", stranger.issue("other"));
  directory.write("ca.pem", authority.pem());
  const auto file = [&](const std::string& name) { return (directory.path() / name).string(); };

  ServerOptions options = with_http();
  options.tls = {file("server.pem"), file("server.key"), ""};
  for (const bool mutual : {false, true}) {
    if (mutual) options.tls.ca = file("ca.pem");
    const Server server(options);
    EXPECT_FALSE(get(server.http_port(), "/healthz"));  // in the clear
    const auto ask = [&](const std::string& certificate) {
      auto client = certificate.empty()
                        ? std::make_unique<httplib::SSLClient>("127.0.0.1", server.http_port())
                        : std::make_unique<httplib::SSLClient>("127.0.0.1", server.http_port(),
                                                               file(certificate + ".pem"),
                                                               file(certificate + ".key"));
      client->set_ca_cert_path(file("ca.pem"));
      const auto answer = client->Get("/healthz");
      return answer ? answer->status : 0;
    };
    EXPECT_EQ(ask(""), mutual ? 0 : 200);
    EXPECT_EQ(ask("client"), 200);
    EXPECT_EQ(ask("other"), mutual ? 0 : 200);
  }
}

// Sends until the other side has had enough; true where it had before `limit` bytes.
bool is_cut_off(int fd, const std::string& begin, const std::string& more, size_t limit) {
  size_t sent = 0;
  send(fd, begin.data(), begin.size(), MSG_NOSIGNAL);
  while (sent < limit) {
    const ssize_t count = send(fd, more.data(), more.size(), MSG_NOSIGNAL);
    if (count <= 0) return true;
    sent += static_cast<size_t>(count);
  }
  return false;
}

TEST(Http, LargeRequestsAreCutOff) {
  const Server server(with_http());
  const std::string header = "X-Padding: " + std::string(1000, 'x') + "\r\n";
  for (const auto& [begin, more] : std::vector<std::pair<std::string, std::string>>{
           {"GET /healthz HTTP/1.1\r\n", header},  // headers without end
           {"GET /", std::string(1000, 'a')},      // a line without end
           {"GET /healthz HTTP/1.1\r\nX: ", std::string(1000, 'b')},
           {"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "3e8\r\n" + std::string(1000, 'c') + "\r\n"}}) {
    const int fd = open_socket(server.http_port());
    EXPECT_TRUE(is_cut_off(fd, begin, more, 64 << 20)) << begin;
    close(fd);
  }
  EXPECT_EQ(get(server.http_port(), "/healthz")->status, 200);
}

// All that comes back for `parts`, sent one after the other, until the server has closed.
std::string answer_to(int port, const std::vector<std::string>& parts) {
  const int fd = open_socket(port);
  for (const std::string& part : parts) {
    EXPECT_EQ(send(fd, part.data(), part.size(), MSG_NOSIGNAL), static_cast<ssize_t>(part.size()));
  }
  std::string answer;
  char buffer[4096];
  for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<size_t>(count));
  }
  close(fd);
  return answer;
}

// Whatever ranges are asked for, the answer is the same, once.
TEST(Http, NothingHasRanges) {
  TemporaryDirectory directory;
  directory.write("tokens", "the-token\n");
  ServerOptions options = with_http();
  options.auth_token_file = (directory.path() / "tokens").string();
  const Server server(options);
  const int port = server.http_port();
  std::string many = "bytes=0-";
  while (many.size() < 8100) many += ",0-";
  const std::string begin = "GET /metrics HTTP/1.1\r\n";
  const std::string token = "Authorization: Bearer the-token\r\n";
  const std::string whole = answer_to(port, {begin + token + "\r\n"});
  ASSERT_EQ(whole.rfind("HTTP/1.1 200 ", 0), 0u) << whole;
  std::vector<std::string> headers = {
      "Range: bytes=7-9",     "Range: bytes=9999999-", "Range: nonsense", "Range:", "Range",
      "Range: 1\r\nRANGE: 2", "Ranger: bytes=0-1"};
  for (const char* name : {"Range: ", "range:", "rAnGE:\t",
                           "Range : ", "Range\t: ", "Range:: ", " Range: ", "X-Range: "}) {
    headers.push_back(name + many);
  }
  for (const std::string& header : headers) {
    const std::string what = header.substr(0, 40);
    EXPECT_EQ(answer_to(port, {begin + header + "\r\n" + token + "\r\n"}), whole) << what;
    EXPECT_EQ(answer_to(port, {begin + token + header + "\r\n\r\n"}), whole) << what;
    const std::string refusal = answer_to(port, {begin + header + "\r\n\r\n"});
    EXPECT_EQ(refusal.rfind("HTTP/1.1 401 ", 0), 0u) << what;
  }
  std::vector<std::string> bytes;
  for (const char c : begin + "Range: bytes=7-9\r\n" + token + "\r\n") bytes.emplace_back(1, c);
  EXPECT_EQ(answer_to(port, bytes), whole);
}

// A server whose requests have all the time, and their first byte so much.
ServerOptions with_first_byte(std::chrono::milliseconds limit) {
  ServerOptions options = with_http();
  options.http_limits.first_byte = limit;
  options.http_limits.duration = std::chrono::hours(24);
  return options;
}

// A probe does not wait behind a few connections that say nothing, and behind many for moments
// only.
TEST(Http, SilentConnectionsHoldNobodyUp) {
  for (const auto& [silent, first_byte] :
       {std::pair<int, std::chrono::milliseconds>{12, std::chrono::hours(24)},
        {48, std::chrono::milliseconds(100)}}) {
    const Server server(with_first_byte(first_byte));
    std::vector<int> sockets;
    for (int i = 0; i < silent; ++i) sockets.push_back(open_socket(server.http_port()));
    httplib::Client patient("127.0.0.1", server.http_port());
    patient.set_read_timeout(60);
    const auto answer = patient.Get("/healthz");
    EXPECT_TRUE(answer && answer->status == 200) << silent;
    for (const int fd : sockets) close(fd);
  }
}

TEST(Http, WhoHasBegunHasTime) {
  const Server server(with_first_byte(std::chrono::milliseconds(100)));
  const int fd = open_socket(server.http_port());
  EXPECT_EQ(send(fd, "GET /hea", 8, MSG_NOSIGNAL), 8);
  // Another, which comes later and says nothing, is over first.
  const int silent = open_socket(server.http_port());
  char byte = 0;
  EXPECT_EQ(read(silent, &byte, 1), 0);
  close(silent);
  const std::string rest = "lthz HTTP/1.1\r\n\r\n";
  EXPECT_EQ(send(fd, rest.data(), rest.size(), MSG_NOSIGNAL), static_cast<ssize_t>(rest.size()));
  char status[13] = {};
  EXPECT_EQ(recv(fd, status, 12, MSG_WAITALL), 12);
  EXPECT_STREQ(status, "HTTP/1.1 200");
  close(fd);
}

// Connections that say nothing are over after their time; meanwhile they hold the port's threads,
// but not the server: gRPC answers, and so does HTTP in the end.
TEST(Http, SilentConnectionsEnd) {
  ServerOptions options = with_http();
  options.http_limits.duration = std::chrono::milliseconds(100);
  RunningServer server(options);
  std::vector<int> sockets;
  for (int i = 0; i < 40; ++i) sockets.push_back(open_socket(server.server().http_port()));
  EXPECT_TRUE(generate(server.port(), greedy("Meanwhile", 5)).status.ok());
  httplib::Client patient("127.0.0.1", server.server().http_port());
  patient.set_read_timeout(60);
  EXPECT_EQ(patient.Get("/healthz")->status, 200);
  for (const int fd : sockets) {
    char byte = 0;
    EXPECT_EQ(read(fd, &byte, 1), 0);  // they were closed
    close(fd);
  }
}

// Whoever holds connections open does not hold the server: sixteen that have a thread, 32 that wait
// for one, one that waits for a place among these, and those that were not accepted.
TEST(Http, StopsWithConnectionsOpen) {
  std::vector<int> sockets;
  {
    const Server server(with_first_byte(std::chrono::hours(24)));
    for (int i = 0; i < 64; ++i) sockets.push_back(open_socket(server.http_port()));
  }
  for (const int fd : sockets) close(fd);
}

TEST(Http, ManyScrapesAtOnce) {
  RunningServer server(with_http());
  std::vector<std::future<int>> scrapes;
  for (int i = 0; i < 64; ++i) {
    scrapes.push_back(std::async(std::launch::async, [port = server.server().http_port()] {
      return get(port, "/metrics")->status;
    }));
  }
  for (auto& scrape : scrapes) EXPECT_EQ(scrape.get(), 200);
}

TEST(Http, APortInUseIsAnError) {
  const Server first(with_http());
  ServerOptions options = with_http();
  options.http_port = first.http_port();
  expect_one_line_error({"127.0.0.1:" + std::to_string(first.http_port()), "in use"},
                        [&] { Server second(options); });
}

// This process's socket that listens there.
int listener_of(int port) {
  for (int fd = 0; fd < 4096; ++fd) {
    int listens = 0;
    sockaddr_in address{};
    socklen_t size = sizeof listens, address_size = sizeof address;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size) == 0 &&
        ntohs(address.sin_port) == port) {
      return fd;
    }
  }
  return -1;
}

// As where the system has no descriptor left for a connection.
TEST(Http, AnEndThatNobodyAskedForIsSeen) {
  const Server server(with_http());
  EXPECT_FALSE(server.http_ended());
  ASSERT_EQ(shutdown(listener_of(server.http_port()), SHUT_RD), 0);
  for (int i = 0; i < 6000 && !server.http_ended(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(server.http_ended());
}

TEST(Http, IsOffUnlessAskedFor) {
  ServerOptions options;
  options.port = 0;
  const Server server(options);
  EXPECT_EQ(server.http_port(), 0);
  EXPECT_FALSE(server.http_ended());
}

}  // namespace
}  // namespace outrider
