// Greeting: the first bytes of a control connection. They prove that the caller belongs to this
// job, and say which rank it is and what the connection is for.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/socket.h"

namespace outrider {

// A new secret for one job: 32 random bytes in hexadecimal.
std::string make_control_secret();

// The address of this host for its peers: 127.0.0.1 where all ranks are on one host, else one that
// an interface of this host has: what the host's name resolves to, or the first that is not
// loopback. Throws Error where there is none.
std::string control_host(bool all_ranks_on_this_host);

enum class ConnectionUse : uint32_t { plans = 1, heartbeats = 2, supervision = 3 };

// Throws Error where nobody answers at `address` ("host:port"). That the secret was right shows
// later: the other side closes the connection where it was not.
FileDescriptor connect_with_greeting(const std::string& address, int rank, ConnectionUse use,
                                     const std::string& secret);

// Listens for connections that greet with the secret; drops all others, which disturb nobody.
class GreetingListener {
 public:
  struct Guest {
    FileDescriptor fd;
    uint32_t rank;
    ConnectionUse use;
  };

  // On a free port of `host`.
  GreetingListener(const std::string& host, std::string secret);

  const std::string& address() const { return address_; }  // "host:port", in figures

  // Appends what to poll for before accept() can have more to give.
  void append_polls(std::vector<pollfd>& polls) const;
  // The next that has greeted; nullopt where there is none yet. Never waits.
  std::optional<Guest> accept();

 private:
  struct Pending {
    FileDescriptor fd;
    std::vector<uint8_t> greeting;  // as much as has arrived
  };
  enum class Progress { waiting, greeted, stranger };

  void accept_pending();
  Progress read_greeting(Pending& pending) const;

  std::string secret_;
  std::string address_;
  FileDescriptor listener_;
  std::vector<Pending> pending_;  // connected, and not yet said who they are
};

}  // namespace outrider
