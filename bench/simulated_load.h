// Requests at a server of virtual time: its scheduler and its lookahead planner are the ones that
// serve, what a step takes is told by cost tables, and which drafts are accepted is drawn.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/lookahead_planner.h"
#include "engine/scheduler.h"

namespace outrider {

struct SimulatedServer {
  SchedulerLimits limits;
  LookaheadTables tables;  // that it knows, and what steps truly take but for the noise
  DrafterKind drafter = DrafterKind::head;
  int max_alternatives = kMaxAlternatives;
  double noise = 0;  // of a step's time: standard deviation of its logarithm
};

struct SimulatedLoad {
  // Either so many requests a second in the mean, at random times, or so many users who each ask
  // again when answered.
  double rate = 0;
  int users = 0;

  int requests = 0;
  // Drawn uniformly for each request: tokens of its prompt and of its answer, and the probability
  // with which a drafted token that is reached is accepted. Of its i-th alternative, from 0, where
  // all before are wrong, it is a 3 + i-th of that: as with the committed head, whose greedy steps
  // of K = 3 emit 1.77 tokens alone and 1.98 beside four.
  std::pair<int, int> prompt_tokens{1, 1}, tokens{1, 1};
  std::pair<double, double> alpha{0, 0};
};

// Seconds.
struct SimulatedAnswer {
  double arrival = 0, first = 0, end = 0;
  int tokens = 0;

  double time_to_first() const { return first - arrival; }
  double end_to_end() const { return end - arrival; }
  double time_per_token() const { return (end - first) / (tokens - 1); }  // behind the first
};

// Whether it needs no more than its costs: no cache, nothing to copy from.
bool can_simulate(DrafterKind drafter);

// All answers, in the order of their arrival. speculates: K is left to the server; else it is 0.
// The same seed gives the same requests to both, at the same times (of users: in the same order).
std::vector<SimulatedAnswer> simulate(const SimulatedServer& server, const SimulatedLoad& load,
                                      bool speculates, uint64_t seed);

}  // namespace outrider
