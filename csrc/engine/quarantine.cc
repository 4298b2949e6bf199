#include "engine/quarantine.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <random>
#include <string>

#include "core/version.h"

namespace outrider {

namespace {

Digest128 digest_of_entry(const QuarantineTable::Entry& entry) {
  return {.low = entry.low, .high = entry.high};
}

template <typename T>
void chain(Digest128& digest, const T* data, size_t count) {
  const auto length = static_cast<uint64_t>(count);
  digest = digest128(&length, sizeof length, digest);
  digest = digest128(data, count * sizeof(T), digest);
}

template <typename T>
void chain(Digest128& digest, const T& value) {
  chain(digest, &value, 1);
}

// An optional's padding means nothing.
template <typename T>
void chain_optional(Digest128& digest, const std::optional<T>& value) {
  chain(digest, value.has_value());
  chain(digest, value.value_or(T{}));
}

}  // namespace

Quarantine::Quarantine(QuarantineTable& table, Clock::time_point now) : table_(table) {
  const std::string build = build_id();
  const uint64_t layout = digest(build.data(), build.size(), sizeof(QuarantineTable));
  if (table_.layout != layout) {
    for (QuarantineTable::Entry& entry : table_.entries) {
      entry.low = entry.high = entry.running = entry.deaths = 0;
    }
    std::random_device random;
    for (auto& salt : table_.salt) salt = uint64_t{random()} << 32 | random();
    table_.layout = layout;
  }
  for (auto entry = table_.entries.rbegin(); entry != table_.entries.rend(); ++entry) {
    const Digest128 request = digest_of_entry(*entry);
    const auto until = [entry] {
      return Clock::time_point(Clock::duration(entry->last_death_ns) + kDuration);
    };
    if (until() <= now) entry->deaths = 0;
    if (entry->running > 0) {
      ++entry->deaths;
      entry->last_death_ns = now.time_since_epoch().count();
      entry->running = 0;
    }
    if (entry->deaths == 0) {
      free_entry(request, *entry);
      continue;
    }
    known_[request] = &*entry;
    if (entry->deaths >= kMaxDeaths) refused_[request] = {entry->deaths, until()};
  }
}

Digest128 Quarantine::digest_of(const Request& request) const {
  Digest128 digest{.low = table_.salt[0], .high = table_.salt[1]};
  chain(digest, request.tenant);
  chain(digest, request.prompt.data(), request.prompt.size());
  const SamplingParams& sampling = request.sampling;
  chain(digest, sampling.temperature);
  chain(digest, sampling.top_p);
  chain(digest, sampling.top_k);
  chain(digest, sampling.min_p);
  chain(digest, sampling.repetition_penalty);
  chain(digest, sampling.presence_penalty);
  chain(digest, sampling.frequency_penalty);
  chain(digest, sampling.min_tokens);
  chain(digest, sampling.logit_bias.size());
  for (const auto& [token, bias] : sampling.logit_bias) {
    chain(digest, token);
    chain(digest, bias);
  }
  chain_optional(digest, sampling.seed);
  chain_optional(digest, sampling.max_tokens);
  chain(digest, sampling.stop.size());
  for (const std::string& stop : sampling.stop) chain(digest, stop.data(), stop.size());
  chain(digest, sampling.stop_token_ids.data(), sampling.stop_token_ids.size());
  chain(digest, sampling.ignore_eos);
  chain(digest, sampling.n);
  chain_optional(digest, sampling.logprobs);
  chain_optional(digest, sampling.prompt_logprobs);
  const SpeculationParams& speculation = request.speculation;
  chain(digest, speculation.off);
  chain_optional(digest, speculation.mode);
  chain(digest, speculation.lenience);
  const std::string drafter = speculation.drafter.value_or("");
  chain(digest, drafter.data(), drafter.size());
  chain_optional(digest, speculation.num_speculative_tokens);
  chain_optional(digest, speculation.num_alternatives);
  chain_optional(digest, speculation.tpot_slo_ms);
  return digest;
}

absl::Status Quarantine::check(const Digest128& request, Clock::time_point now) const {
  const auto refusal = refused_.find(request);
  if (refusal == refused_.end() || refusal->second.until <= now) return absl::OkStatus();
  const auto minutes = std::chrono::ceil<std::chrono::minutes>(refusal->second.until - now);
  return absl::FailedPreconditionError(
      absl::StrCat("this request was running when the job died, ", refusal->second.deaths,
                   " times; it is refused for ", minutes.count(), " min"));
}

void Quarantine::began(const Digest128& request) {
  const auto known = known_.find(request);
  QuarantineTable::Entry* entry = known != known_.end() ? known->second : take_entry(request);
  if (entry != nullptr) ++entry->running;
}

void Quarantine::ended(const Digest128& request, bool well) {
  const auto known = known_.find(request);
  if (known == known_.end()) return;
  QuarantineTable::Entry& entry = *known->second;
  if (well) entry.deaths = 0;
  if (entry.running > 0) --entry.running;
  if (entry.running == 0 && entry.deaths == 0) free_entry(request, entry);
}

// The process may die between any two stores: what is running is always there whole.
QuarantineTable::Entry* Quarantine::take_entry(const Digest128& request) {
  if (free_.empty()) {  // then the one goes that has been quiet for longest
    auto oldest = known_.end();
    for (auto it = known_.begin(); it != known_.end(); ++it) {
      if (it->second->running > 0) continue;
      if (oldest == known_.end() || it->second->last_death_ns < oldest->second->last_death_ns) {
        oldest = it;
      }
    }
    if (oldest == known_.end()) return nullptr;  // this one goes unrecorded
    free_entry(Digest128(oldest->first), *oldest->second);
  }
  QuarantineTable::Entry* const entry = free_.back();
  free_.pop_back();
  entry->low = request.low;
  entry->high = request.high;
  known_[request] = entry;
  return entry;
}

void Quarantine::free_entry(const Digest128& request, QuarantineTable::Entry& entry) {
  entry.running = entry.deaths = 0;
  entry.low = entry.high = 0;
  known_.erase(request);
  free_.push_back(&entry);
}

}  // namespace outrider
