#include "spec/acceptance.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace outrider {

namespace {

// Nobody knows a drafter before it has drafted: worth a try, and soon forgotten.
constexpr double kFirstGuess = 0.6, kFirstGuessWeight = 2;
// Observations that a guess from the position before, or from the server, is worth.
constexpr double kInheritedWeight = 2, kServerWeight = 16;
constexpr double kCarried = 0.5;  // of how much better a sequence does, to its next position
// Standard deviations between what a sequence showed and what is believed of it, at most.
constexpr double kFurthest = 2;
constexpr double kKept = 0.95;  // of what is known, by a step without drafts
// Of what is known of positions behind a draft that was accepted whole.
constexpr double kKeptBehind = 0.995;

double posterior(double accepted, double reached, double guess, double weight) {
  return (accepted + weight * guess) / (reached + weight);
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
  VerifiedDrafts cut{
      .num_drafted = num_emitted, .num_accepted = num_emitted, .alpha_counts = alpha_counts};
  if (alpha_counts) {
    cut.alpha_sum = num_emitted;
    cut.alpha_rows = num_emitted;
  }
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

Hazard hazard_of(const AcceptanceCounts& sequence, const Hazard& server) {
  Hazard hazard;
  double better = 0;  // than the server, at the position before
  for (int i = 0; i < kMaxDraftTokens; ++i) {
    const double accepted = sequence.accepted(i), reached = sequence.reached(i);
    const double guess = std::clamp(server[i] + kCarried * better, 0.0, 1.0);
    hazard[i] = within_reach(posterior(accepted, reached, guess, kServerWeight), accepted, reached);
    better = hazard[i] - server[i];
  }
  return hazard;
}

}  // namespace outrider
