#include "comm/liveness.h"

#include <absl/strings/str_format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Clock = LivenessJudge::Clock;

// What passes between two ranks of one build.
struct Beat {
  uint32_t magic;
  uint16_t is_goodbye;
  uint16_t state;
  uint64_t step;
  uint64_t expected_ms;
  uint64_t collectives;
};
static_assert(sizeof(Beat) == 32);
constexpr uint32_t kBeatMagic = 0x4254524F;  // "ORTB"

constexpr short kEnded = POLLRDHUP | POLLHUP | POLLERR | POLLNVAL;

double seconds_of(nanoseconds time) { return duration<double>(time).count(); }

// 0, or the errno of the failure. A full buffer is none: it shows as silence soon enough.
int send_beat(int fd, const Beat& beat) {
  const ssize_t sent = send(fd, &beat, sizeof(beat), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == sizeof(beat) || (sent < 0 && (errno == EAGAIN || errno == EINTR))) return 0;
  return sent < 0 ? errno : EMSGSIZE;
}

}  // namespace

LivenessJudge::LivenessJudge(int rank, std::span<const int> peers, LivenessLimits limits,
                             Clock::time_point now)
    : rank_(rank), limits_(limits), last_(now) {
  for (const int peer : peers) others_.emplace(peer, Observed());
}

void LivenessJudge::observe(Observed& observed, const ProgressReport& report) const {
  const bool changed = report.state != observed.report.state || report.step != observed.report.step;
  if (changed) observed.changed = seen_;
  if (report.turn != observed.report.turn) observed.turned = seen_;
  if (changed || report.collectives != observed.report.collectives) observed.advanced = seen_;
  observed.heard = seen_;
  observed.report = report;
}

void LivenessJudge::heard(int peer, const ProgressReport& report) {
  const auto found = others_.find(peer);
  if (found != others_.end()) observe(found->second, report);
}

std::optional<Loss> LivenessJudge::judge(const ProgressReport& own, Clock::time_point now) {
  seen_ += std::min<nanoseconds>(now - last_, 2 * limits_.interval);
  last_ = now;
  observe(own_, own);
  std::optional<Loss> loss = silent_peer();
  if (!loss && rank_ == 0) loss = hung_start();
  if (!loss && rank_ == 0) loss = hung_step();
  if (!loss && rank_ == 0) loss = hung_between_steps();
  return loss;
}

std::optional<Loss> LivenessJudge::silent_peer() const {
  bool in_step = own_.report.state == RankState::in_step;
  bool starting = own_.report.state < RankState::idle;
  for (const auto& [peer, observed] : others_) {
    in_step |= observed.report.state == RankState::in_step;
    // A first step shows that all have loaded, whatever they last said.
    starting |= observed.report.state < RankState::idle && own_.report.step == 0;
  }
  const milliseconds limit = starting  ? limits_.silence_starting
                             : in_step ? limits_.silence_in_step
                                       : limits_.silence_idle;
  for (const auto& [peer, observed] : others_) {
    const nanoseconds silence = seen_ - observed.heard;
    if (silence <= limit) continue;
    return Loss{peer, absl::StrFormat("nothing was heard from it for %.1f s", seconds_of(silence))};
  }
  return std::nullopt;
}

// Where some have joined or loaded, the first that has not is named. Where all wait for each other,
// none is to be told from the rest.
std::optional<Loss> LivenessJudge::hung_start() const {
  // A first step shows that all have loaded, whatever they last said.
  if (own_.report.step > 0) return std::nullopt;
  const Observed* last = &own_;
  int last_rank = rank_;
  bool all_alike = true;
  for (const auto& [peer, observed] : others_) {
    all_alike &= observed.report.state == own_.report.state;
    if (observed.report.state >= last->report.state) continue;
    last = &observed;
    last_rank = peer;
  }
  const nanoseconds taken = seen_ - last->changed;
  const bool joining = last->report.state == RankState::joining;
  if (last->report.state >= RankState::idle ||
      taken <= (joining ? limits_.longest_join : limits_.longest_load)) {
    return std::nullopt;
  }
  return Loss{last_rank,
              absl::StrFormat("%s %s for %.1f s", all_alike ? "no rank has" : "it has not",
                              joining ? "joined the communicator" : "loaded", seconds_of(taken))};
}

// How far each rank has come, by what it last said.
std::string LivenessJudge::positions() const {
  std::string text;
  const auto add = [&text](int rank, const ProgressReport& report) {
    absl::StrAppendFormat(&text, "; rank %d: step %d, ", rank, report.step);
    if (report.state == RankState::in_step) {
      absl::StrAppendFormat(&text, "collective %d", report.collectives);
    } else {
      text += "ended";
    }
  };
  add(rank_, own_.report);
  for (const auto& [peer, observed] : others_) add(peer, observed.report);
  return text;
}

// The ranks take every step together, so one that hangs soon holds up all of them. The first to be
// named is the one that has come least far.
std::optional<Loss> LivenessJudge::hung_step() const {
  const auto position = [](const Observed& o) {
    return std::pair(2 * o.report.step - (o.report.state == RankState::in_step ? 1 : 0),
                     o.report.collectives);
  };
  const Observed* last = &own_;
  int last_rank = rank_;
  uint64_t furthest_step = own_.report.step;
  bool all_alike = true;
  // The longest of those that hang.
  nanoseconds hung{0};
  bool stands_still = false;
  milliseconds expected{0};
  const auto consider = [&](int rank, const Observed& o) {
    if (position(o) < position(*last)) {
      last = &o;
      last_rank = rank;
    }
    furthest_step = std::max(furthest_step, o.report.step);
    all_alike &= position(o) == position(own_);
    if (o.report.state != RankState::in_step) return;
    // Up to when it was heard: a late beat is silence, which has a limit of its own.
    const nanoseconds stood_still = o.heard - o.advanced, taken = o.heard - o.changed;
    // By its own step: another rank may be in the next one, which should take less.
    const auto limit = std::max(limits_.shortest_hang, limits_.hang_factor * o.report.expected);
    const bool still = stood_still > limit;
    if (!still && taken <= limits_.advancing_factor * limit) return;
    const nanoseconds time = still ? stood_still : taken;
    if (time <= hung) return;
    hung = time;
    stands_still = still;
    expected = o.report.expected;
  };
  consider(rank_, own_);
  for (const auto& [peer, observed] : others_) consider(peer, observed);
  if (hung == nanoseconds(0)) return std::nullopt;
  return Loss{last_rank,
              absl::StrFormat("step %d has not %s %s for %.1f s; expected were %d ms for "
                              "all of it%s",
                              furthest_step, stands_still ? "advanced" : "ended",
                              all_alike ? "on any rank" : "on it", seconds_of(hung),
                              expected.count(), positions())};
}

// This rank's engine plans, publishes, and takes in what has come, which no other rank sees.
std::optional<Loss> LivenessJudge::hung_between_steps() const {
  if (own_.report.state != RankState::idle || !own_.report.has_work()) return std::nullopt;
  const nanoseconds taken = seen_ - std::max(own_.changed, own_.turned);
  const auto limit =
      std::max(limits_.longest_between_steps, limits_.hang_factor * own_.report.expected);
  if (taken <= limit) return std::nullopt;
  return Loss{rank_,
              absl::StrFormat("it has not begun its next step for %.1f s, unless another rank does "
                              "not take its plan",
                              seconds_of(taken))};
}

class Liveness::Thread {
 public:
  Thread(int rank, std::span<const Peer> peers, int stop, std::atomic<bool>& heard_goodbye,
         const StepProgress& progress, OnLost on_lost, LivenessLimits limits,
         OwnFailure own_failure)
      : rank_(rank),
        limits_(limits),
        heard_goodbye_(heard_goodbye),
        progress_(progress),
        on_lost_(std::move(on_lost)),
        own_failure_(std::move(own_failure)),
        judge_(rank, ranks_of(peers), limits, Clock::now()) {
    polls_.push_back({stop, POLLIN, 0});
    for (const Peer& peer : peers) {
      polls_.push_back({peer.connection.get(), POLLIN | POLLRDHUP, 0});
      lines_.push_back({peer.rank, {}, 0});
    }
  }

  void run() {
    Clock::time_point next_beat = Clock::now();
    while (true) {
      poll(polls_.data(), polls_.size(), poll_timeout_ms(next_beat));
      if (polls_[0].revents != 0) return;
      // First all that has come, then the judgement: this thread may have been held up itself.
      std::optional<Loss> loss;
      for (size_t i = 0; i < lines_.size() && !loss; ++i) loss = read(lines_[i], polls_[i + 1]);
      const Clock::time_point now = Clock::now();
      if (!loss && now >= next_beat) {
        next_beat = now + limits_.interval;
        loss = send_beats();
        if (!loss) loss = judge_.judge(progress_.report(), now);
        if (!loss) loss = own_loss();
      }
      if (loss) return on_lost_(*loss);
    }
  }

 private:
  // What has arrived of the next beat.
  struct Line {
    int rank;
    std::array<uint8_t, sizeof(Beat)> bytes;
    size_t received;
  };

  static std::vector<int> ranks_of(std::span<const Peer> peers) {
    std::vector<int> ranks;
    for (const Peer& peer : peers) ranks.push_back(peer.rank);
    return ranks;
  }

  // All that has come from one peer.
  std::optional<Loss> read(Line& line, pollfd& poll) {
    while (poll.fd >= 0) {
      const ssize_t n = recv(poll.fd, line.bytes.data() + line.received,
                             line.bytes.size() - line.received, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n <= 0) return Loss{line.rank, end_reason(n == 0 ? 0 : errno)};
      line.received += n;
      if (line.received < line.bytes.size()) continue;
      line.received = 0;
      Beat beat;
      std::memcpy(&beat, line.bytes.data(), sizeof(beat));
      if (beat.magic != kBeatMagic) {
        return Loss{line.rank, absl::StrFormat("its heartbeat has magic %d; expected %d",
                                               beat.magic, kBeatMagic)};
      }
      if (beat.is_goodbye != 0) {
        heard_goodbye_ = true;
        judge_.forget(line.rank);
        poll.fd = -1;  // poll() leaves it out
        break;
      }
      judge_.heard(line.rank, {.state = static_cast<RankState>(beat.state),
                               .step = beat.step,
                               .expected = milliseconds(beat.expected_ms),
                               .collectives = beat.collectives});
    }
    return std::nullopt;
  }

  std::optional<Loss> own_loss() const {
    const bool joined = progress_.report().state != RankState::joining;
    const std::string failure = joined && own_failure_ ? own_failure_() : "";
    if (failure.empty()) return std::nullopt;
    return Loss{rank_, failure};
  }

  std::optional<Loss> send_beats() {
    const ProgressReport own = progress_.report();
    const Beat beat{kBeatMagic,
                    0,
                    static_cast<uint16_t>(own.state),
                    own.step,
                    static_cast<uint64_t>(own.expected.count()),
                    own.collectives};
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (polls_[i + 1].fd < 0) continue;
      const int error = send_beat(polls_[i + 1].fd, beat);
      if (error != 0) return Loss{lines_[i].rank, end_reason(error)};
    }
    return std::nullopt;
  }

  const int rank_;
  const LivenessLimits limits_;
  std::atomic<bool>& heard_goodbye_;
  const StepProgress& progress_;
  OnLost on_lost_;
  OwnFailure own_failure_;
  LivenessJudge judge_;
  std::vector<pollfd> polls_;  // the stop, then as lines_
  std::vector<Line> lines_;
};

Liveness::Liveness(int rank, std::vector<Peer> peers, const StepProgress& progress, OnLost on_lost,
                   LivenessLimits limits, OwnFailure own_failure)
    : peers_(std::move(peers)), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_.valid()) throw Error("heartbeat: eventfd failed: " + errno_text(errno));
  thread_ = std::jthread(
      [thread = Thread(rank, peers_, stop_.get(), heard_goodbye_, progress, std::move(on_lost),
                       limits, std::move(own_failure))]() mutable { thread.run(); });
}

Liveness::~Liveness() { CHECK(eventfd_write(stop_.get(), 1) == 0); }

void Liveness::goodbye() {
  if (!thread_.joinable()) return;
  CHECK(eventfd_write(stop_.get(), 1) == 0);
  thread_.join();
  const Beat goodbye{kBeatMagic, 1, 0, 0, 0, 0};
  // One that has gone already needs none, and the others still do.
  for (const Peer& peer : peers_) send_beat(peer.connection.get(), goodbye);
}

bool Liveness::peer_gone() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    pollfd end{peer.connection.get(), POLLRDHUP, 0};
    return poll(&end, 1, 0) > 0 && (end.revents & kEnded) != 0;
  });
}

}  // namespace outrider
