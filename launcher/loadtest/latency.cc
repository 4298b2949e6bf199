// See latency.h.
#include "launcher/loadtest/latency.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <cmath>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

// "30ms" or "0.5s", in milliseconds.
std::optional<double> parse_time_ms(absl::string_view text) {
  const bool in_ms = absl::ConsumeSuffix(&text, "ms");
  if (!in_ms && !absl::ConsumeSuffix(&text, "s")) return std::nullopt;
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value) || value <= 0) return std::nullopt;
  return in_ms ? value : kMsPerSecond * value;
}

void add_latencies(const RequestRecord& record, int64_t unit, LatencySamples& samples) {
  samples.send_delay.add(kMsPerSecond * (record.sent_s - record.due_s), unit);
  if (!record.ok()) return;
  const Latency latency = latency_of(record);
  if (latency.ttft) samples.ttft.add(*latency.ttft, unit);
  if (latency.tpot) samples.tpot.add(*latency.tpot, unit);
  samples.e2e.add(latency.e2e, unit);
  samples.queue.add(record.queue_ms, unit);
  for (size_t i = 1; i < record.chunks.size(); ++i) {
    const RequestRecord::Chunk& chunk = record.chunks[i];
    const double gap_ms = kMsPerSecond * (chunk.at_s - record.chunks[i - 1].at_s);
    samples.itl.add(gap_ms, unit);
    for (int token = 0; token < chunk.num_tokens; ++token) {
      samples.itl_amortised.add(gap_ms / chunk.num_tokens, unit);
    }
  }
}

}  // namespace

Latency latency_of(const RequestRecord& record) {
  Latency latency{.e2e = kMsPerSecond * (record.end_s - record.due_s)};
  if (record.chunks.empty()) return latency;
  const double first_s = record.chunks.front().at_s;
  latency.ttft = kMsPerSecond * (first_s - record.due_s);
  const size_t num_tokens = record.token_ids.size();
  if (num_tokens > 1) {
    latency.tpot = kMsPerSecond * (record.end_s - first_s) / static_cast<double>(num_tokens - 1);
  }
  return latency;
}

bool is_measured(const RequestRecord& record, double warmup_s) {
  return !record.cancelled && record.due_s >= warmup_s;
}

LatencySamples latency_samples(const std::vector<LoadResult>& loads, double warmup_s, Unit unit) {
  LatencySamples samples;
  for (size_t i = 0; i < loads.size(); ++i) {
    for (const RequestRecord& record : loads[i].records) {
      if (!is_measured(record, warmup_s)) continue;
      const auto turn = static_cast<int64_t>(i);
      add_latencies(record, unit == Unit::turn ? turn : record.question, samples);
    }
  }
  return samples;
}

bool Objectives::kept_by(const RequestRecord& record) const {
  if (!record.ok()) return false;
  const Latency latency = latency_of(record);
  return (!ttft || (latency.ttft && *latency.ttft <= *ttft)) &&
         (!tpot || !latency.tpot || *latency.tpot <= *tpot) && (!e2e || latency.e2e <= *e2e);
}

std::string Objectives::text() const {
  std::string text;
  for (const auto& [name, objective] :
       {std::pair("TTFT", ttft), {"TPOT", tpot}, {"end to end", e2e}}) {
    if (!objective) continue;
    absl::StrAppendFormat(&text, "%s%s %g ms", text.empty() ? "" : ", ", name, *objective);
  }
  return text;
}

Objectives parse_objectives(const std::string& text) {
  Objectives objectives;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> sides = absl::StrSplit(part, '=');
    std::optional<double>* objective = sides[0] == "ttft"   ? &objectives.ttft
                                       : sides[0] == "tpot" ? &objectives.tpot
                                       : sides[0] == "e2e"  ? &objectives.e2e
                                                            : nullptr;
    const auto time_ms = sides.size() == 2 ? parse_time_ms(sides[1]) : std::nullopt;
    if (objective == nullptr || *objective || !time_ms) {
      throw Error(text + ": expected ttft, tpot or e2e, each once, as ttft=500ms,tpot=30ms,e2e=2s");
    }
    *objective = time_ms;
  }
  return objectives;
}

}  // namespace outrider
