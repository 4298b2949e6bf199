// See load_plan.h. The generators are the standard's mt19937_64, whose sequence is the same
// everywhere; its distributions are not, so numbers are taken from the bits here.
#include "launcher/loadtest/load_plan.h"

#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

enum Purpose : uint32_t { kArrivals, kOrder, kLengths, kSeeds };

std::mt19937_64 make_generator(uint64_t seed, Purpose purpose) {
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(purpose)};
  return std::mt19937_64(sequence);
}

// [0, 1), 53 bits
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

// 0 … count - 1; the bias of count / 2^53 shows in no load test
uint64_t below(std::mt19937_64& random, uint64_t count) {
  return static_cast<uint64_t>(uniform(random) * static_cast<double>(count));
}

// The whole of `text` as a positive number.
std::optional<int32_t> positive(const std::string& text) {
  int32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || value < 1) return std::nullopt;
  return value;
}

}  // namespace

LoadPlan open_loop(double rate, double duration_s, int64_t max_requests, uint64_t seed) {
  CHECK(rate > 0 && std::isfinite(rate));
  LoadPlan plan{.duration_s = duration_s, .max_requests = max_requests};
  CHECK(std::isfinite(duration_s) || max_requests < LoadPlan().max_requests);
  std::mt19937_64 random = make_generator(seed, kArrivals);
  double time_s = 0;
  while (static_cast<int64_t>(plan.due_s.size()) < max_requests) {
    time_s -= std::log1p(-uniform(random)) / rate;  // exponential gaps
    if (time_s >= duration_s) break;
    plan.due_s.push_back(time_s);
  }
  return plan;
}

LoadPlan closed_loop(int concurrency, double duration_s, int64_t max_requests) {
  return {.due_s = std::vector<double>(static_cast<size_t>(concurrency), 0.0),
          .closed_loop = true,
          .duration_s = duration_s,
          .max_requests = max_requests};
}

std::optional<OutputLength> parse_output_length(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const std::string kind = text.substr(0, colon), values = text.substr(colon + 1);
  if (kind == "fixed") {
    const auto length = positive(values);
    if (!length) return std::nullopt;
    return OutputLength{*length, *length};
  }
  const size_t second = values.find(':');
  if (kind != "uniform" || second == std::string::npos) return std::nullopt;
  const auto least = positive(values.substr(0, second)), most = positive(values.substr(second + 1));
  if (!least || !most || *least > *most) return std::nullopt;
  return OutputLength{*least, *most};
}

RequestDraws::RequestDraws(int num_prompts, OutputLength length, uint64_t seed)
    : length_(length),
      order_(static_cast<size_t>(num_prompts)),
      next_in_order_(order_.size()),
      order_random_(make_generator(seed, kOrder)),
      length_random_(make_generator(seed, kLengths)),
      seed_random_(make_generator(seed, kSeeds)) {
  CHECK(num_prompts > 0);
  std::iota(order_.begin(), order_.end(), 0);
}

RequestDraws::Draw RequestDraws::next() {
  if (next_in_order_ == order_.size()) {
    next_in_order_ = 0;
    for (size_t i = order_.size(); i > 1; --i) {  // Fisher and Yates
      std::swap(order_[i - 1], order_[below(order_random_, i)]);
    }
  }
  const auto num_lengths = static_cast<uint64_t>(length_.most - length_.least) + 1;
  return {.prompt = order_[next_in_order_++],
          .max_tokens = length_.least + static_cast<int32_t>(below(length_random_, num_lengths)),
          .seed = seed_random_()};
}

}  // namespace outrider
