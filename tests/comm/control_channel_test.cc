// Rank 0 and its peers over loopback, the peers as threads of this process.
#include "comm/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "core/error.h"

namespace outrider {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

constexpr milliseconds kLong = seconds(60);  // never reached where the code is right
constexpr milliseconds kShort{50};           // for what never comes
const std::string kSecret = "a secret of this job";

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// What `call` threw, "" where it threw nothing.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

FileDescriptor connect_raw(const std::string& address) {
  return connect_to(address, std::chrono::steady_clock::now() + kLong);
}

void write_raw(const FileDescriptor& fd, const Bytes& bytes) {
  ASSERT_EQ(send_all(fd.get(), bytes, {}), 0);
}

// A server with peers 1 … n, connected.
struct Channel {
  explicit Channel(int num_peers) : server(num_peers, kSecret) {
    for (int rank = 1; rank <= num_peers; ++rank) {
      clients.push_back(std::make_unique<ControlClient>(server.address(), rank, kSecret));
    }
    server.accept_all(kLong);
  }
  ControlServer server;
  std::vector<std::unique_ptr<ControlClient>> clients;  // [rank - 1]
};

TEST(ControlChannel, EveryPeerGetsEveryMessageInOrder) {
  Channel channel(2);
  constexpr int kMessages = 2000;
  std::vector<std::future<int>> in_order;
  for (auto& client : channel.clients) {
    in_order.push_back(std::async(std::launch::async, [&client] {
      int i = 0;
      // Half of the time asleep, half of the time spinning.
      while (auto message = client->receive(microseconds(i % 2 == 0 ? 0 : 1000))) {
        if (*message == bytes_of("message " + std::to_string(i))) ++i;
      }
      return i;
    }));
  }
  for (int i = 0; i < kMessages; ++i) {
    channel.server.publish(bytes_of("message " + std::to_string(i)));
  }
  channel.server.goodbye();
  for (auto& future : in_order) EXPECT_EQ(future.get(), kMessages);
}

TEST(ControlChannel, CarriesEmptyAndLargeMessages) {
  Channel channel(1);
  Bytes large(5 << 20);
  std::iota(large.begin(), large.end(), 0);
  auto received = std::async(std::launch::async, [&] {
    std::vector<Bytes> all;
    while (auto message = channel.clients[0]->receive(microseconds(100))) {
      all.push_back(std::move(*message));
    }
    return all;
  });
  channel.server.publish({});
  channel.server.publish(large);
  channel.server.goodbye();
  EXPECT_EQ(received.get(), (std::vector<Bytes>{{}, large}));
}

TEST(ControlChannel, GathersInRankOrder) {
  Channel channel(3);
  for (const int rank : {3, 1, 2}) {
    channel.clients[rank - 1]->send(bytes_of("ready " + std::to_string(rank)));
  }
  EXPECT_EQ(channel.server.gather(kLong),
            (std::vector<Bytes>{bytes_of("ready 1"), bytes_of("ready 2"), bytes_of("ready 3")}));
}

TEST(ControlChannel, NamesThePeersThatSaidNothing) {
  Channel channel(3);
  channel.clients[1]->send(bytes_of("ready"));
  EXPECT_THAT(error_of([&] { channel.server.gather(kShort); }),
              HasSubstr("ranks 1, 3 said nothing within 50 ms"));
}

TEST(ControlChannel, NamesThePeersThatDidNotConnect) {
  ControlServer server(3, kSecret);
  const ControlClient client(server.address(), 2, kSecret);
  EXPECT_THAT(error_of([&] { server.accept_all(kShort); }),
              HasSubstr("ranks 1, 3 did not connect within 50 ms"));
}

TEST(ControlChannel, StrangersDoNotDisturb) {
  ControlServer server(2, kSecret);
  const ControlClient first(server.address(), 1, kSecret);
  const FileDescriptor silent = connect_raw(server.address());
  const FileDescriptor garbage = connect_raw(server.address());
  write_raw(garbage, bytes_of("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: stranger\r\n\r\n"));
  const FileDescriptor terse = connect_raw(server.address());
  write_raw(terse, bytes_of("\n"));
  connect_raw(server.address());  // and closed at once
  std::vector<FileDescriptor> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(connect_raw(server.address()));
  const ControlClient second(server.address(), 2, kSecret);
  EXPECT_EQ(error_of([&] { server.accept_all(kLong); }), "");
  EXPECT_EQ(error_of([&] { server.publish(bytes_of("plan")); }), "");
}

// More than are looked at together have connected, and greeted, before anybody is let in.
TEST(ControlChannel, NoneOfManyPeersIsDropped) {
  const Channel channel(150);  // two connections each
  EXPECT_EQ(channel.clients.size(), 150u);
}

TEST(ControlChannel, AWrongSecretIsTurnedAway) {
  ControlServer server(1, kSecret);
  std::string wrong = kSecret;
  wrong.back() ^= 1;
  ControlClient impostor(server.address(), 1, wrong);
  ControlClient shorter(server.address(), 1, kSecret.substr(1));
  EXPECT_THAT(error_of([&] { server.accept_all(kShort); }), HasSubstr("rank 1 did not connect"));
  ControlClient peer(server.address(), 1, kSecret);
  server.accept_all(kLong);
  server.publish(bytes_of("plan"));
  EXPECT_EQ(peer.receive(microseconds(0)), bytes_of("plan"));
  EXPECT_THAT(error_of([&] { impostor.receive(microseconds(0)); }), HasSubstr("rank 0 is lost"));
  EXPECT_THAT(error_of([&] { shorter.receive(microseconds(0)); }), HasSubstr("rank 0 is lost"));
}

TEST(ControlChannel, RefusesARankThatCannotBe) {
  for (const auto& [rank, expected] : {std::pair{2, "connected twice"},
                                       {0, "calls itself rank 0; expected 1 to 2"},
                                       {3, "calls itself rank 3; expected 1 to 2"}}) {
    ControlServer server(2, kSecret);
    const ControlClient two(server.address(), 2, kSecret);
    const ControlClient other(server.address(), rank, kSecret);
    EXPECT_THAT(error_of([&] { server.accept_all(kLong); }), HasSubstr(expected));
  }
}

TEST(ControlChannel, ADeadPeerIsNamed) {
  Channel channel(3);
  channel.clients[0]->send(bytes_of("alive"));  // what arrives is no reason for alarm
  channel.clients[1].reset();
  EXPECT_THAT(error_of([&] { channel.server.publish(bytes_of("plan")); }),
              HasSubstr("rank 2 is lost: it closed the connection"));
  EXPECT_THAT(error_of([&] { channel.server.gather(kLong); }), HasSubstr("rank 2 is lost"));
}

// Which another start may mend, unlike what a peer says wrong.
TEST(ControlChannel, WhoeverIsGoneOrNeverCameIsGone) {
  ControlServer alone(1, kSecret);
  EXPECT_THROW(alone.accept_all(kShort), PeerGoneError);
  Channel channel(2);
  channel.clients[1].reset();
  EXPECT_THROW(channel.server.gather(kLong), PeerGoneError);
  EXPECT_THROW(channel.server.publish(bytes_of("plan")), PeerGoneError);
  auto left = std::make_unique<Channel>(1);
  const auto clients = std::move(left->clients);
  left.reset();
  EXPECT_THROW(clients[0]->receive(microseconds(0)), PeerGoneError);

  Channel whole(1);
  try {
    whole.server.gather(kShort);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PeerGoneError&) {
    ADD_FAILURE() << "it is there, and silent";
  } catch (const Error&) {
  }
}

TEST(ControlChannel, WhoIsLeftHearsGoodbye) {
  Channel channel(3);
  channel.clients[2].reset();
  channel.clients[0].reset();
  channel.server.goodbye();
  EXPECT_EQ(channel.clients[1]->receive(microseconds(0)), std::nullopt);
}

TEST(ControlChannel, AHalfConnectedPeerIsMissing) {
  ControlServer server(2, kSecret);
  const ControlClient whole(server.address(), 1, kSecret);
  const FileDescriptor plans =
      connect_with_greeting(server.address(), 2, ConnectionUse::plans, kSecret);
  EXPECT_THAT(error_of([&] { server.accept_all(kShort); }),
              HasSubstr("rank 2 did not connect within 50 ms"));
}

TEST(ControlChannel, RankZerosEndIsNoGoodbye) {
  auto channel = std::make_unique<Channel>(2);
  auto clients = std::move(channel->clients);
  auto sleeping = std::async(
      std::launch::async, [&] { return error_of([&] { clients[0]->receive(microseconds(0)); }); });
  channel.reset();
  EXPECT_THAT(sleeping.get(), HasSubstr("rank 0 is lost"));
  EXPECT_THAT(error_of([&] { clients[1]->receive(seconds(1)); }), HasSubstr("rank 0 is lost"));
}

TEST(ControlChannel, SignalsDoNotInterrupt) {
  static std::atomic<int> signals = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++signals; };  // without SA_RESTART
  sigaction(SIGUSR1, &action, &before);

  Channel channel(1);
  std::promise<pthread_t> thread;
  auto received = std::async(std::launch::async, [&] {
    thread.set_value(pthread_self());
    return channel.clients[0]->receive(microseconds(0));
  });
  const pthread_t sleeper = thread.get_future().get();
  for (int i = 1; i <= 20; ++i) {
    pthread_kill(sleeper, SIGUSR1);
    while (signals < i) std::this_thread::yield();
  }
  channel.server.publish(bytes_of("plan"));
  EXPECT_EQ(received.get(), bytes_of("plan"));
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(ControlChannel, SecretsAreNeverTheSame) {
  const std::string secret = make_control_secret();
  EXPECT_EQ(secret.size(), 64u);
  EXPECT_NE(secret, make_control_secret());
}

TEST(ControlChannel, RanksOfOneHostMeetOnLoopback) {
  EXPECT_EQ(control_host(/*all_ranks_on_this_host=*/true), "127.0.0.1");
}

TEST(ControlChannel, SaysWhereItCouldNotConnect) {
  std::string address;
  { const FileDescriptor closed = listen_on("127.0.0.1", &address); }
  EXPECT_THAT(error_of([&] { ControlClient(address, 1, kSecret); }),
              AllOf(HasSubstr(address), HasSubstr("Connection refused")));
  EXPECT_THAT(error_of([&] { ControlClient("nowhere", 1, kSecret); }),
              HasSubstr("\"nowhere\"; expected host:port"));
}

}  // namespace
}  // namespace outrider
