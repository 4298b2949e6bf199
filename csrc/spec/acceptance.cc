#include "spec/acceptance.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace outrider {

namespace {

// Nobody knows a drafter before it has drafted: worth a try, and soon forgotten.
constexpr double kFirstGuess = 0.6, kFirstGuessWeight = 2;
// Observations that a guess from the position before is worth.
constexpr double kInheritedWeight = 2;
// Standard deviations between what a sequence showed and what is believed of it, at most.
constexpr double kFurthest = 2;
// Of what is known, by a step without drafts: of one sequence, and of a server.
constexpr double kKept = 0.95, kKeptOfServer = 0.9995;
// Of what is known of positions behind a draft that was accepted whole.
constexpr double kKeptBehind = 0.995;
// Of offsets, of all sequences, in log odds: their standard deviation, and what is left of one from
// a step to the next (docs/operations/lookahead.md says where both are from).
constexpr double kDeviation = 0.6, kFollows = 0.9;
// No server is so sure of a draft that a sequence could not show otherwise.
constexpr double kSurest = 0.9999;

double posterior(double accepted, double reached, double guess, double weight) {
  return (accepted + weight * guess) / (reached + weight);
}

// probability: at odds that are `factor` times as high.
double times_odds(double probability, double factor) {
  probability = std::clamp(probability, 1 - kSurest, kSurest);
  return probability * factor / (1 - probability + probability * factor);
}

// Brings `guess` into the interval of Wilson (1927) around accepted of reached.
double within_reach(double guess, double accepted, double reached) {
  if (reached <= 0) return guess;
  constexpr double kSquare = kFurthest * kFurthest;
  const double refused = reached - accepted, all = reached + kSquare;
  const double middle = (accepted + kSquare / 2) / all;
  const double half = kFurthest * std::sqrt(accepted * refused / reached + kSquare / 4) / all;
  return std::clamp(guess, middle - half, middle + half);
}

}  // namespace

VerifiedDrafts VerifiedDrafts::within(int num_emitted) const {
  if (num_emitted > num_accepted) return *this;
  VerifiedDrafts cut{.num_drafted = num_emitted,
                     .num_accepted = num_emitted,
                     .alpha_counts = alpha_counts,
                     .num_alternatives = num_alternatives};
  if (alpha_rows == 0) return cut;
  cut.alpha_rows = num_emitted;
  const double share = static_cast<double>(num_emitted) / alpha_rows;
  cut.alpha_sum = alpha_counts ? num_emitted : share * alpha_sum;
  cut.shift_sum = share * shift_sum;
  return cut;
}

void AcceptanceCounts::observe(int num_drafted, int num_accepted) {
  CHECK(0 <= num_accepted && num_accepted <= num_drafted && num_drafted <= kMaxDraftTokens);
  for (int i = 0; i < std::min(num_accepted + 1, num_drafted); ++i) {
    if (reached_[i] >= window_) {
      reached_[i] /= 2;
      accepted_[i] /= 2;
    }
    reached_[i] += 1;
    accepted_[i] += i < num_accepted;
  }
}

void AcceptanceCounts::age() { fade(0, kKept); }

void AcceptanceCounts::age_of_server() { fade(0, kKeptOfServer); }

void AcceptanceCounts::age_behind(int num_drafted) { fade(num_drafted, kKeptBehind); }

void AcceptanceCounts::fade(int first, double kept) {
  for (int i = first; i < kMaxDraftTokens; ++i) {
    reached_[i] *= kept;
    accepted_[i] *= kept;
  }
}

Hazard hazard_of(const AcceptanceCounts& server) {
  Hazard hazard;
  double guess = kFirstGuess, weight = kFirstGuessWeight;
  for (int i = 0; i < kMaxDraftTokens; ++i) {
    guess = hazard[i] = posterior(server.accepted(i), server.reached(i), guess, weight);
    weight = kInheritedWeight;
  }
  return hazard;
}

double expected_accepted(const Hazard& hazard, int num_tokens) {
  double accepted = 0, all_before = 1;
  for (int i = 0; i < num_tokens; ++i) accepted += all_before *= hazard[i];
  return accepted;
}

AcceptanceOffset::AcceptanceOffset() : variance_(kDeviation * kDeviation) {}

// A token that was accepted or not moves the mean by the variance times how much of that was not
// expected: one Newton step to the posterior's mode (Laplace's approximation).
void AcceptanceOffset::observe(const Hazard& server, int num_drafted, int num_accepted) {
  for (int i = 0; i < std::min(num_accepted + 1, num_drafted); ++i) {
    const double expected = times_odds(server[i], std::exp(mean_));
    variance_ /= 1 + variance_ * expected * (1 - expected);
    mean_ += variance_ * ((i < num_accepted ? 1 : 0) - expected);
  }
  forget(kFollows);
}

void AcceptanceOffset::age() { forget(kKept); }

void AcceptanceOffset::forget(double kept) {
  mean_ *= kept;
  variance_ = kept * kept * variance_ + (1 - kept * kept) * kDeviation * kDeviation;
}

Hazard AcceptanceOffset::added_to(Hazard server) const {
  const double factor = std::exp(mean_);
  for (double& probability : server) probability = times_odds(probability, factor);
  return server;
}

std::array<double, kMaxAlternatives> accepted_alternatives(const Hazard& hazard,
                                                           const Hazard& wrong) {
  std::array<double, kMaxAlternatives> accepted;
  double none_before = 1 - hazard[0];
  for (int i = 0; i < kMaxAlternatives; ++i) {
    accepted[i] = none_before * (1 - wrong[i]);
    none_before *= wrong[i];
  }
  return accepted;
}

Hazard hazard_of(const AcceptanceCounts& sequence, const AcceptanceOffset& offset,
                 const Hazard& server) {
  Hazard hazard = offset.added_to(server);
  for (int i = 0; i < kMaxDraftTokens; ++i) {
    hazard[i] = within_reach(hazard[i], sequence.accepted(i), sequence.reached(i));
  }
  return hazard;
}

}  // namespace outrider
