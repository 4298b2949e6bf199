// See length_distribution.h.
#include "launcher/loadtest/length_distribution.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/random.h"

namespace outrider {
namespace {

constexpr double kMostSigma = 10;

// Digits alone: numbers with signs or spaces are misspelt.
bool read_length(const std::string& text, int32_t& length) {
  return std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, &length) && length >= 1;
}

}  // namespace

int32_t LengthDistribution::draw(std::mt19937_64& random) const {
  if (kind == Kind::uniform) {
    const auto num_lengths = static_cast<uint64_t>(most - least) + 1;
    return least + static_cast<int32_t>(below(random, num_lengths));
  }
  const double length = std::round(median * std::exp(sigma * normal(random)));
  return static_cast<int32_t>(
      std::clamp(length, static_cast<double>(least), static_cast<double>(most)));
}

std::string LengthDistribution::text() const {
  if (kind == Kind::lognormal) {
    return absl::StrFormat("lognormal:%g:%g:%d", median, sigma, most);
  }
  return least == most ? absl::StrFormat("fixed:%d", least)
                       : absl::StrFormat("uniform:%d:%d", least, most);
}

std::optional<LengthDistribution> parse_length_distribution(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  LengthDistribution lengths;
  if (parts[0] == "fixed" && parts.size() == 2 && read_length(parts[1], lengths.least)) {
    return LengthDistribution::fixed(lengths.least);
  }
  if (parts[0] == "uniform" && parts.size() == 3 && read_length(parts[1], lengths.least) &&
      read_length(parts[2], lengths.most) && lengths.least <= lengths.most) {
    return lengths;
  }
  lengths = {.kind = LengthDistribution::Kind::lognormal, .least = 1};
  int32_t median = 0;
  if (parts[0] == "lognormal" && parts.size() == 4 && read_length(parts[1], median) &&
      absl::SimpleAtod(parts[2], &lengths.sigma) && lengths.sigma > 0 &&
      lengths.sigma <= kMostSigma && read_length(parts[3], lengths.most) &&
      median <= lengths.most) {
    lengths.median = median;
    return lengths;
  }
  return std::nullopt;
}

}  // namespace outrider
