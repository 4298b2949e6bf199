// PrefillPacer: how much slower prompt rows may make the steps of the streams that run, by what
// such steps really take: tables that were measured at the start miss what a context or a busy
// machine adds. Pure: told of times, it reads no clock.
#pragma once

namespace outrider {

class PrefillPacer {
 public:
  // slowdown: the times of what it takes without prompt rows that a step shall take with them; > 1.
  explicit PrefillPacer(double slowdown) : slowdown_(slowdown) {}

  // A step whose prompt rows were held back by what slowdown() allows took `ms`; without them it
  // would have taken plain_ms.
  void observe(double plain_ms, double ms);

  // What the tables have to be asked for.
  double slowdown() const { return 1 + pace_ * (slowdown_ - 1); }

 private:
  double slowdown_;
  double pace_ = 1;
};

}  // namespace outrider
