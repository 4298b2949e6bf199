// When the requests of a load test are due, and how long their answers may be. All of it follows
// from a seed and is known before the first request is sent.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace outrider {

// Times are seconds since the start of the test.
struct LoadPlan {
  // Ascending. Open loop: one request each. Closed loop: one user each, whose next request is due
  // when the last one was answered.
  std::vector<double> due_s;
  bool closed_loop = false;
  // What is due then or later is not sent.
  double duration_s = std::numeric_limits<double>::infinity();
  // No more than these are sent.
  int64_t max_requests = std::numeric_limits<int64_t>::max();
};

// Poisson arrivals, `rate` a second in the mean, up to `duration_s` or `max_requests`, whichever
// comes first; one of them must be finite.
LoadPlan open_loop(double rate, double duration_s, int64_t max_requests, uint64_t seed);

// `concurrency` users, all there at the start.
LoadPlan closed_loop(int concurrency, double duration_s, int64_t max_requests);

// max_tokens of a request: between `least` and `most`, each as likely as the others.
struct OutputLength {
  int32_t least = 64;
  int32_t most = 64;
};

// "fixed:N" or "uniform:A:B" with 1 <= A <= B; nothing where it is neither.
std::optional<OutputLength> parse_output_length(const std::string& text);

// What else is drawn for the requests, one after the other.
class RequestDraws {
 public:
  // num_prompts: at least 1
  RequestDraws(int num_prompts, OutputLength length, uint64_t seed);

  struct Draw {
    int prompt;          // 0 … num_prompts - 1: all of them in random order, then all again
    int32_t max_tokens;  // from the distribution
    uint64_t seed;       // for sampling
  };
  Draw next();

 private:
  OutputLength length_;
  std::vector<int> order_;
  size_t next_in_order_;
  // One generator a purpose: other lengths do not mean another order.
  std::mt19937_64 order_random_, length_random_, seed_random_;
};

}  // namespace outrider
