// What one request waited for, from its record.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/statistics.h"
#include "launcher/loadtest/request_record.h"

namespace outrider {

constexpr double kMsPerSecond = 1e3;

// Of an answer that ended well; in milliseconds.
struct Latency {
  std::optional<double> ttft;  // from due to the first token
  std::optional<double> tpot;  // (end - first token) / (tokens - 1), with two tokens and more
  double e2e = 0;              // from due to the end
};
Latency latency_of(const RequestRecord& record);

// Of many.
struct LatencySamples {
  Samples ttft, tpot, e2e;  // as above
  Samples itl;              // between neighbouring chunks with tokens
  Samples itl_amortised;    // the same, shared out among the later chunk's tokens
  Samples queue;            // as the server says
  Samples send_delay;       // from due to sent: what this program itself was late; of failures too
};

// Whether a request counts: it was due from warmup_s on and the test itself did not cancel it.
bool is_measured(const RequestRecord& record, double warmup_s);

// The unit of a sample: its request's question, or its load, one of many turns. What disturbs a
// machine for a while makes all answers of a turn slow, so that they are no independent samples.
enum class Unit { question, turn };

// Of the measured requests of loads that asked the same in the same way.
LatencySamples latency_samples(const std::vector<LoadResult>& loads, double warmup_s, Unit unit);

// What an answer must keep to count as good; in milliseconds.
struct Objectives {
  std::optional<double> ttft, tpot, e2e;

  bool any() const { return ttft || tpot || e2e; }
  // An answer of one token has no TPOT and keeps every objective for it.
  bool kept_by(const RequestRecord& record) const;
  std::string text() const;  // "TTFT 500 ms, end to end 2000 ms"
};

// "ttft=500ms,tpot=30ms,e2e=2s", each at most once. Throws Error.
Objectives parse_objectives(const std::string& text);

}  // namespace outrider
