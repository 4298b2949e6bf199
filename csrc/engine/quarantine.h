// Quarantine: which requests were running when the job died, told by one start of it to the next
// through memory that outlives the process. What was running twice is refused, for a while.
#pragma once

#include <absl/status/status.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/digest.h"
#include "engine/request.h"

namespace outrider {

// What lies in that memory; all zeros at the first start. Digests of requests, never their text.
struct QuarantineTable {
  struct Entry {
    std::atomic<uint64_t> low, high;  // the request's digest; 0, 0: the entry is free
    std::atomic<uint64_t> running;    // so many of it
    std::atomic<uint64_t> deaths;     // of the job, while it was running
    std::atomic<int64_t> last_death_ns;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  std::atomic<uint64_t> layout;  // of which build: another one's table is forgotten
  std::array<std::atomic<uint64_t>, 2> salt;
  std::array<Entry, 1024> entries;
};

class Quarantine {
 public:
  using Clock = std::chrono::steady_clock;  // goes on from one start to the next

  static constexpr uint64_t kMaxDeaths = 2;
  static constexpr std::chrono::minutes kDuration{60};  // since the last death

  // Whatever is running in `table` was so when the job died. `table` outlives this.
  explicit Quarantine(QuarantineTable& table, Clock::time_point now = Clock::now());

  // What a client that asks again sends again: prompt and parameters; not its id or priority, nor
  // the tokens that it has already. Thread-safe, as is check().
  Digest128 digest_of(const Request& request) const;
  // OK, or FailedPrecondition with the reason.
  absl::Status check(const Digest128& request, Clock::time_point now = Clock::now()) const;

  // Called by the engine's thread. A request runs from its first step on; well: it was answered, so
  // what died was something else's fault.
  void began(const Digest128& request);
  void ended(const Digest128& request, bool well);

 private:
  struct Hash {
    size_t operator()(const Digest128& digest) const { return digest.low; }
  };
  struct Refusal {
    uint64_t deaths;
    Clock::time_point until;
  };

  QuarantineTable::Entry* take_entry(const Digest128& request);
  void free_entry(const Digest128& request, QuarantineTable::Entry& entry);

  QuarantineTable& table_;
  std::unordered_map<Digest128, Refusal, Hash> refused_;  // never changes
  std::unordered_map<Digest128, QuarantineTable::Entry*, Hash> known_;
  std::vector<QuarantineTable::Entry*> free_;  // a stack
};

}  // namespace outrider
