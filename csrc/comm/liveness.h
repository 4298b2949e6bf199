// Liveness: tells when a peer is dead, silent or hung. Each rank but 0 has a heartbeat connection
// to rank 0, and a thread of its own at each end that breathes over it, whatever the engine's does.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/socket.h"
#include "comm/step_progress.h"

namespace outrider {

struct LivenessLimits {
  std::chrono::milliseconds interval{250};  // between two heartbeats
  // Nothing heard from a peer: while a step is under way somewhere, while there is none, and while
  // ranks start, when a slow disk may hold up a whole process.
  std::chrono::milliseconds silence_in_step{3'000};
  std::chrono::milliseconds silence_idle{5'000};
  std::chrono::milliseconds silence_starting{30'000};
  // However it breathes, a rank hangs that takes longer to join the communicator, or to load.
  std::chrono::milliseconds longest_join{60'000};
  std::chrono::milliseconds longest_load{1'800'000};
  // A step hangs where a rank has begun no collective, of the target or of a draft, for the longer
  // of this and so many times what it expects all of the step to take. On a host that gives the
  // ranks little of its processors every collective is late, and yet one follows the other.
  std::chrono::milliseconds shortest_hang{3'000};
  int hang_factor = 10;
  // However it advances, it has no more than so many times as long.
  int advancing_factor = 10;
  // Rank 0's engine hangs that has work and begins no step for the longer of this and as many times
  // what it expected the last one to take.
  std::chrono::milliseconds longest_between_steps{10'000};
};

struct Loss {
  int rank;
  std::string reason;
};

// The judgement alone, without threads or sockets. Time that the judge itself did not see pass, as
// when the whole machine was paused, counts for nothing.
class LivenessJudge {
 public:
  using Clock = std::chrono::steady_clock;

  // Only rank 0 judges starts and steps: it has clients to tell before the others end.
  LivenessJudge(int rank, std::span<const int> peers, LivenessLimits limits, Clock::time_point now);

  void heard(int peer, const ProgressReport& report);
  // This peer has said goodbye: whatever becomes of it is no loss.
  void forget(int peer) { others_.erase(peer); }
  // Call it about every interval. own: this rank's progress.
  std::optional<Loss> judge(const ProgressReport& own, Clock::time_point now);

 private:
  struct Observed {
    ProgressReport report;
    std::chrono::nanoseconds heard{0};     // when, on the judge's clock
    std::chrono::nanoseconds changed{0};   // when it last began or ended a step
    std::chrono::nanoseconds advanced{0};  // the same, or began a collective
    std::chrono::nanoseconds turned{0};    // when its engine last went on between steps
  };

  void observe(Observed& observed, const ProgressReport& report) const;
  std::optional<Loss> silent_peer() const;
  std::optional<Loss> hung_start() const;
  std::optional<Loss> hung_step() const;
  std::optional<Loss> hung_between_steps() const;
  std::string positions() const;

  int rank_;
  LivenessLimits limits_;
  Clock::time_point last_;
  std::chrono::nanoseconds seen_{0};  // time that has passed while the judge looked
  Observed own_;
  std::map<int, Observed> others_;
};

class Liveness {
 public:
  struct Peer {
    int rank;
    FileDescriptor connection;
  };
  using OnLost = std::function<void(const Loss&)>;
  // Why this rank itself can go on no more, empty while it can (Communicator::failure). Called from
  // the heartbeat's thread, once `progress` says that this rank has joined the communicator.
  using OwnFailure = std::function<std::string()>;

  // peers: on rank 0 every other rank, elsewhere rank 0, none where a rank is alone (which is then
  // its own judge). on_lost is called at most once, on the heartbeat's thread, which ends with it.
  // `progress` outlives this.
  Liveness(int rank, std::vector<Peer> peers, const StepProgress& progress, OnLost on_lost,
           LivenessLimits limits = {}, OwnFailure own_failure = {});
  // Without a goodbye() before, the peers see a broken connection.
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // The orderly end: no end of a peer is a loss from here on, and the peers are told that this
  // one's is none.
  void goodbye();

  // Thread-safe: a peer's connection has ended, whether or not on_lost was called for it yet.
  bool peer_gone() const;
  // Thread-safe: a peer has said goodbye.
  bool heard_goodbye() const { return heard_goodbye_; }

 private:
  class Thread;

  std::vector<Peer> peers_;
  FileDescriptor stop_;  // an eventfd
  std::atomic<bool> heard_goodbye_ = false;
  std::jthread thread_;  // joins before what it uses goes
};

}  // namespace outrider
