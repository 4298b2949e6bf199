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
  // alpha_sum is num_accepted: not `rejection`.
  bool alpha_counts = false;
  // Tokens beside the first drafted one, and which of them was accepted in its place; -1: none. Of
  // the K drafted tokens none was then, and what is told of them leaves the alternatives out.
  int num_alternatives = 0, alternative = -1;

  int num_verified() const { return num_drafted + num_alternatives; }
  int num_kept() const { return alternative >= 0 ? 1 : num_accepted; }

  // Of them, those within an answer that took num_emitted of the step's tokens: what lies behind
  // its end is nobody's. Of a sum over rows of which some lie behind it, their share by number.
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
  // The same of a server's, of a kind of which a step drafted nothing, for whatever reason: what
  // nothing is drafted for is forgotten, however often others are drafted for.
  void age_of_server();
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

// Of so many drafted tokens, those that are accepted in the mean.
double expected_accepted(const Hazard& hazard, int num_tokens);

// By how much one sequence's drafts do better than the server's, in log odds, whatever the
// position: texts differ in how well they are drafted, and so do a text's parts. A Gaussian that
// each token that was reached moves, and that returns to that of all sequences from step to step.
class AcceptanceOffset {
 public:
  AcceptanceOffset();

  // As AcceptanceCounts::observe(). server: what was expected of such drafts before this step.
  void observe(const Hazard& server, int num_drafted, int num_accepted);
  // A step said nothing of such drafts.
  void age();

  Hazard added_to(Hazard server) const;

 private:
  void forget(double kept);

  double mean_ = 0, variance_;
};

// [i]: that the i-th alternative to the first drafted token is accepted. Hazards: of the draft; and
// `wrong`: of each alternative that it is not the target's token, given that all before it were
// not.
std::array<double, kMaxAlternatives> accepted_alternatives(const Hazard& hazard,
                                                           const Hazard& wrong);

// Of one sequence: the server's, moved by its offset, but not further from what its own counts show
// at a position than luck explains: one that is unlike all others is soon believed.
Hazard hazard_of(const AcceptanceCounts& sequence, const AcceptanceOffset& offset,
                 const Hazard& server);

}  // namespace outrider
