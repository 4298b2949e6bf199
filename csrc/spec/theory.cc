#include "spec/theory.h"

#include <algorithm>

#include "core/error.h"

namespace outrider {

// Summed term by term: exact at alpha = 1, and no difference of nearly equal numbers near it.
double expected_tokens(double alpha, int num_draft_tokens) {
  CHECK(alpha >= 0 && alpha <= 1 && num_draft_tokens >= 0);
  double tokens = 0, accepted = 1;
  for (int i = 0; i <= num_draft_tokens; ++i, accepted *= alpha) tokens += accepted;
  return tokens;
}

double expected_speedup(double alpha, int num_draft_tokens, double c, double target_cost) {
  CHECK(c >= 0 && target_cost > 0);
  return expected_tokens(alpha, num_draft_tokens) / (target_cost + num_draft_tokens * c);
}

// From K = 1 while one token more pays: behind one that does not, none does, since each is accepted
// less often than the one before. What it adds is compared, not the speed-ups, which are equal but
// for rounding where c = 0.
int best_num_draft_tokens(double alpha, double c, int max, double target_cost) {
  int best = 1;
  double accepted = alpha * alpha;  // the token behind `best` of them
  while (best < max && accepted * (target_cost + best * c) > c * expected_tokens(alpha, best)) {
    ++best;
    accepted *= alpha;
  }
  return best <= max && expected_speedup(alpha, best, c, target_cost) > 1 ? best : 0;
}

double least_speedup(double alpha, double c, double target_cost) {
  return std::max(1.0, expected_speedup(alpha, 1, c, target_cost));
}

double most_speedup(double alpha) {
  CHECK(alpha >= 0 && alpha <= 1);
  return 1 / (1 - alpha);
}

// A step drafts n tokens with probability alpha^n (1 - alpha), alpha / (1 - alpha) in the mean.
// So it emits 1 / (1 - alpha) and takes 1 + c alpha / (1 - alpha).
double oracle_speedup(double alpha, double c) {
  CHECK(alpha >= 0 && alpha <= 1 && c >= 0);
  return 1 / (1 - alpha + c * alpha);
}

double operations_growth(double alpha, int num_draft_tokens, double c) {
  CHECK(c >= 0);
  return (num_draft_tokens * c + num_draft_tokens + 1) / expected_tokens(alpha, num_draft_tokens);
}

double target_reads_growth(double alpha, int num_draft_tokens) {
  return 1 / expected_tokens(alpha, num_draft_tokens);
}

}  // namespace outrider
