// What speculation is worth in theory (Leviathan et al. 2023, section 3), for drafted tokens that
// are each accepted with probability alpha, independently of each other.
#pragma once

namespace outrider {

// E[tokens of a step] for K drafted tokens: (1 - alpha^(K + 1)) / (1 - alpha), K + 1 at alpha = 1
// (equation 1). alpha: 0 … 1.
double expected_tokens(double alpha, int num_draft_tokens);

// How many times as fast as plain decoding: expected_tokens / (target_cost + K c) (theorem 3.8).
// c: a draft pass over a target pass of one row, at least 0. target_cost: a target pass of K + 1
// rows over one of one row; 1 where rows are free.
double expected_speedup(double alpha, int num_draft_tokens, double c, double target_cost = 1);

// The K of 0 … max with the largest expected_speedup, the smallest of equals. Where c = 0 every
// token pays that may be accepted: max, but for alpha = 0. target_cost: of every K above 0.
int best_num_draft_tokens(double alpha, double c, int max, double target_cost = 1);

// What some K is at least worth: the speed-up of K = 1, (1 + alpha) / (target_cost + c), or that of
// K = 0 (corollary 3.9).
double least_speedup(double alpha, double c, double target_cost = 1);

// What no K is worth more than, however little drafts and rows cost: 1 / (1 - alpha), the tokens of
// a step that drafts without end (section 3.6). Infinite at alpha = 1.
double most_speedup(double alpha);

// Of an oracle that drafts just what will be accepted, however much that is (section 3.5):
// 1 / (1 - alpha + c alpha), where rows are free. Infinite at alpha = 1 where c = 0.
double oracle_speedup(double alpha, double c);

// Times as many arithmetic operations as plain decoding: (K c + K + 1) / expected_tokens (theorem
// 3.11). c: operations of the draft over those of the target, for a token.
double operations_growth(double alpha, int num_draft_tokens, double c);

// Times as many reads of the target's weights and cache as plain decoding, which reads them for
// each token and not for each step: 1 / expected_tokens (section 3.4).
double target_reads_growth(double alpha, int num_draft_tokens);

}  // namespace outrider
