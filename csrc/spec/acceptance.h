// Acceptance: how likely a drafted token is to be accepted where it is reached, by its position in
// the draft.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/verify_types.h"

namespace outrider {

// [i]: of the i-th drafted token of a step, given that all before it were accepted.
using Hazard = std::array<double, kMaxDraftTokens>;

// What verification made of one sequence's drafts in a step; the sums are the Verdict's.
struct VerifiedDrafts {
  int num_drafted = 0, num_accepted = 0;
  double alpha_sum = 0, shift_sum = 0;
  int alpha_rows = 0;
  // alpha_sum is num_accepted and shift_sum is 0: neither `rejection` nor lenience.
  bool alpha_counts = false;

  // Of them, those within an answer that took num_emitted of the step's tokens: what lies behind
  // its end is nobody's. Sums that cannot be told apart are left out with all their rows.
  VerifiedDrafts within(int num_emitted) const;
};

// Counts of positions that were reached, and of those accepted. Old counts fade, so that what is
// drafted for may change.
class AcceptanceCounts {
 public:
  // window: observations of a position that count in full; more halve what there is.
  explicit AcceptanceCounts(double window) : window_(window) {}

  // A step verified num_drafted tokens and kept num_accepted: nothing is learnt behind a refusal.
  void observe(int num_drafted, int num_accepted);
  // A step drafted nothing because of what is known here: that counts less from now on, or bad luck
  // would never be found out.
  void age();
  // A step kept all of num_drafted tokens, where more might have been drafted: what is known of the
  // positions behind them counts less from now on, or a few refusals there would choose K for good.
  void age_behind(int num_drafted);

  double reached(int position) const { return reached_[position]; }
  double accepted(int position) const { return accepted_[position]; }

 private:
  void fade(int first, double kept);

  double window_;
  std::array<double, kMaxDraftTokens> reached_{}, accepted_{};
};

// The server's own: a weak guess at first; a position that was not reached inherits the one before.
Hazard hazard_of(const AcceptanceCounts& server);

// Of one sequence: the server's, and what the sequence adds. Sequences differ little, so that a few
// of its tokens say less than all others'; but one that is unlike the others is soon believed.
// Where it does better or worse than the server at one position, half as much is expected of the
// next.
Hazard hazard_of(const AcceptanceCounts& sequence, const Hazard& server);

}  // namespace outrider
