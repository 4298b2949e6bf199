#include "server/port_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/address.h"
#include "server/server_harness.h"
#include "testing/certificates.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

constexpr ProbeTimes kTimes{.between = milliseconds(10), .answer = milliseconds(150)};

// Probes that are answered take milliseconds, so that there are many of them; three that were not
// would be told in half the time.
void expect_alive(int port, const std::string& address = "127.0.0.1") {
  std::atomic<int> told = 0;
  const PortProbe probe(
      own_addresses(address, port), [&told] { ++told; }, kTimes);
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_EQ(told, 0);
}

TEST(PortProbe, AServerAnswers) {
  RunningServer server;
  expect_alive(server.port());
}

// As where there is no IPv6: nothing listens on [::1].
TEST(PortProbe, AServerAnswersAtEitherLoopback) {
  RunningServer server;
  expect_alive(server.port(), "::");
}

// What a name stands for beside this machine's addresses is not asked.
TEST(PortProbe, AServerAnswersAtItsName) {
  RunningServer server;
  expect_alive(server.port(), "localhost");
  EXPECT_THAT(server.server().addresses(),
              testing::ElementsAre("127.0.0.1:" + std::to_string(server.port())));
  EXPECT_THAT(own_addresses("localhost", 7),
              testing::AllOf(testing::Not(testing::IsEmpty()),
                             testing::IsSubsetOf({"127.0.0.1:7", "[::1]:7"})));
  EXPECT_THAT(own_addresses("127.0.0.1", 7), testing::ElementsAre("127.0.0.1:7"));
  EXPECT_THAT(own_addresses("192.0.2.1", 7), testing::IsEmpty());  // of documentation: nobody's
  expect_one_line_error({"nowhere.invalid"}, [] { own_addresses("nowhere.invalid", 7); });
}

TEST(PortProbe, AServerAnswersOverTls) {
  const TestAuthority authority("authority");
  const CertificateAndKey certificate = authority.issue("server");
  const TemporaryDirectory directory;
  directory.write("cert", certificate.cert);
  directory.write("key", certificate.key);
  std::filesystem::permissions(directory.path() / "key", std::filesystem::perms(0600));
  ServerOptions options;
  options.tls = {(directory.path() / "cert").string(), (directory.path() / "key").string(), ""};
  RunningServer server(options);
  expect_alive(server.port());
}

// The kernel makes the connections, and nobody takes them but who accepts here.
struct UnservedPort {
  std::string address;
  FileDescriptor listener = listen_on("127.0.0.1", &address);
  int port = std::stoi(address.substr(address.rfind(':') + 1));
};

TEST(PortProbe, APortThatNobodyServesIsToldOnce) {
  const UnservedPort unserved;
  std::atomic<int> told = 0;
  const PortProbe probe(own_addresses("0.0.0.0", unserved.port), [&told] { ++told; },
                        {.between = milliseconds(1), .answer = milliseconds(200)});
  for (int i = 0; i < 1000 && told == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(told, 1);
  int probes = 0;
  for (pollfd waiting{unserved.listener.get(), POLLIN, 0}; poll(&waiting, 1, 0) > 0; ++probes) {
    ASSERT_TRUE(FileDescriptor(accept(unserved.listener.get(), nullptr, nullptr)).valid());
  }
  EXPECT_EQ(probes, 3);  // one or two that take long say nothing
}

TEST(PortProbe, AnotherPortsEndIsToldOnce) {
  RunningServer server;
  std::atomic<int> told = 0;
  std::atomic<bool> ended = false;
  const PortProbe probe(
      own_addresses("127.0.0.1", server.port()), [&told] { ++told; }, kTimes,
      [&ended] { return ended.load(); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(told, 0);
  ended = true;
  for (int i = 0; i < 1000 && told == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(told, 1);
}

// Two probes of three find nobody, but never three in a row.
TEST(PortProbe, AServerThatAnswersNowAndThenIsAlive) {
  const UnservedPort unserved;
  std::atomic<int> told = 0;
  const PortProbe probe(own_addresses("0.0.0.0", unserved.port), [&told] { ++told; },
                        {.between = milliseconds(1), .answer = milliseconds(400)});
  std::vector<FileDescriptor> unanswered;
  for (int i = 0; i < 12; ++i) {
    pollfd waiting{unserved.listener.get(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, 10'000), 1);
    FileDescriptor connection(accept(unserved.listener.get(), nullptr, nullptr));
    if (i % 3 != 2) unanswered.push_back(std::move(connection));  // else it is closed at once
  }
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace outrider
