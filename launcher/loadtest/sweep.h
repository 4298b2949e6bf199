// A sweep: one load after the other, and where the server's knee is. A comparison may be of each
// load, and has a knee for each arm.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/loadtest/comparison.h"
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

// One load. A test without a sweep is a single one, without value and name.
struct SweepStep {
  double value = 0;
  std::string name;             // "rate=4"
  std::vector<ArmResult> arms;  // those that no step before saturated
};

// Whether a server that works did less than it was asked: either more than a tenth of the measured
// requests were refused or came too late, or those in it grew by more than a tenth of those that
// were due meanwhile, and by more than chance would have it. Growth is from the second quarter of
// the measured time to the last, which leaves out how the load began; of several turns of one load
// it is added up.
bool is_saturated(const std::vector<LoadResult>& turns, double warmup_s);

// The results of one arm, as many as it has steps; steps.front() has all arms.
std::vector<const ArmResult*> results_of(size_t arm, const std::vector<SweepStep>& steps);

// Whether some latencies are, as is_of_survivors() says.
bool has_survivors(const std::vector<SweepStep>& steps);

// The position of the step of the greatest power, throughput / mean end-to-end latency (Kleinrock,
// 1979), among those that are neither saturated nor failed: beyond it, more load costs more in
// waiting than it brings. Nothing where there is none. Such a server keeps up with a rate, so that
// its throughput is what was offered and answered: a number of requests ends with the last answer,
// which takes longer the faster they come.
std::optional<size_t> find_knee(const SweepValues& values,
                                const std::vector<const ArmResult*>& results);

// A line for each arm that says where the knee is, and whether it is of the answers alone, and
// where the server was saturated or failed; of users that did neither, where throughput was
// greatest.
std::vector<std::string> verdicts(const SweepValues& values, const std::vector<SweepStep>& steps);

// {variable, values, steps, knee, saturated_at}; the last two are null where there is none. Of a
// comparison a step is {value, compare}, and in place of the last two there is knees: [{arm, knee,
// saturated_at}].
nlohmann::ordered_json to_json(const SweepValues& values, const std::vector<SweepStep>& steps);

}  // namespace outrider
