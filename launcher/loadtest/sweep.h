// A sweep: one load after the other, and where the server's knee is.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/loadtest/report.h"
#include "launcher/loadtest/request_record.h"

namespace outrider {

inline constexpr double kLeastRate = 1e-6, kMostRate = 1e6;  // requests a second
inline constexpr int kMostUsers = 10'000;

struct SweepValues {
  enum class Variable { rate, users };
  Variable variable = Variable::rate;
  std::vector<double> values;  // ascending

  // "rate=4"
  std::string name(double value) const;
};

// "rate=1,2,4" or "users=1,2,4". Throws Error.
SweepValues parse_sweep(const std::string& text);

struct SweepStep {
  double value = 0;
  LoadResult load;
  LoadReport report;
  bool saturated = false;
  bool failed = false;  // the server did, so that the step says nothing of its load
};

// Whether a server that works did less than it was asked: either more than a tenth of the measured
// requests were refused or came too late, or those in it grew by more than a tenth of those that
// were due meanwhile, and by more than chance would have it. Growth is from the second quarter of
// the measured time to the last, which leaves out how the load began.
bool is_saturated(const LoadResult& load, double warmup_s);

// The position of the step of the greatest power, throughput / mean end-to-end latency (Kleinrock,
// 1979), among those that are neither saturated nor failed: beyond it, more load costs more in
// waiting than it brings. Nothing where there is none.
std::optional<size_t> find_knee(const std::vector<SweepStep>& steps);

// One line that says where the knee is, and where the server was saturated or failed.
std::string verdict(const SweepValues& values, const std::vector<SweepStep>& steps);

// {variable, values, steps, knee, saturated_at}; the last two are null where there is none.
nlohmann::ordered_json to_json(const SweepValues& values, const std::vector<SweepStep>& steps);

}  // namespace outrider
