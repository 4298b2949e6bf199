// LossBudget: what drafting may lose, so that speculation never makes a server slower by more than
// a hundredth. Arithmetic alone; what things cost is somebody else's to know.
#pragma once

namespace outrider {

// It gains 1 % of the time that plain steps take, or would have taken, and pays what drafting takes
// beyond what its tokens would have taken plainly; a step that gained pays back. It starts with,
// and never holds more than, what 20 drafting steps cost beyond plain ones. So for any sequence of
// steps, none of which is begun for more than what is left, and by the costs that it is told,
//   Σ cost ≤ 1.01 Σ tokens × plain cost of a token + the start.
class LossBudget {
 public:
  static constexpr double kShare = 0.01;
  static constexpr double kDraftingSteps = 20;

  // drafting_ms: what a drafting step costs now beyond a plain one; positive. The first call fills
  // the budget.
  void set_cost(double drafting_ms);
  bool has_started() const { return most_ms_ > 0; }

  // A step that would take plain_ms without drafting.
  void earn(double plain_ms) { add(kShare * plain_ms); }
  // A step lost so much by its drafts; less than 0: it gained.
  void charge(double loss_ms) { add(-loss_ms); }

  // 0: what is empty, or owes, allows nothing.
  double left_ms() const { return left_ms_ > 0 ? left_ms_ : 0; }
  // So little is left that not even one drafting step can be begun.
  bool is_spent() const { return has_started() && left_ms_ < most_ms_ / kDraftingSteps; }

 private:
  void add(double ms);

  double left_ms_ = 0;  // below 0: a step cost more than was thought
  double most_ms_ = 0;
};

}  // namespace outrider
