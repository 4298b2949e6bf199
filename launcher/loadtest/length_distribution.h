// LengthDistribution: how many tokens a prompt has, or an answer may have.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

namespace outrider {

struct LengthDistribution {
  // uniform: least … most, each as likely as the others. lognormal: median * e^(sigma * normal),
  // rounded and clipped to least … most.
  enum class Kind { uniform, lognormal };
  Kind kind = Kind::uniform;
  int32_t least = 64, most = 64;
  double median = 0, sigma = 0;  // lognormal alone

  static LengthDistribution fixed(int32_t length) { return {.least = length, .most = length}; }

  int32_t draw(std::mt19937_64& random) const;
  // As parse_length_distribution() reads it.
  std::string text() const;
};

inline constexpr char kLengthDistributionForms[] =
    "fixed:N, uniform:A:B or lognormal:MEDIAN:SIGMA:MOST";

// One of these forms with 1 <= A <= B, 1 <= MEDIAN <= MOST and 0 < SIGMA <= 10; nothing where it is
// none of them.
std::optional<LengthDistribution> parse_length_distribution(const std::string& text);

}  // namespace outrider
