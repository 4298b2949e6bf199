// The output distribution of speculative sampling, exactly: every draft weighted by its
// probability, the accept test integrated over u, the extra token by its weights, all through the
// functions that Verifier composes. A planted bug replaces one of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/distribution.h"
#include "kernels/cpu/processors.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/verify.h"
#include "spec/exactness_pairs.h"

namespace outrider::exactness {

// What a step is made of; the members' defaults are production.
struct Steps {
  decltype(&cpu::edit_logits) edit_draft = cpu::edit_logits;
  decltype(&cpu::edit_logits) edit_target = cpu::edit_logits;
  decltype(&cpu::verify_summary) verify_summary = cpu::verify_summary;
  decltype(&outrider::combine_summaries) combine_summaries = outrider::combine_summaries;
  decltype(&cpu::process_row) process_row = cpu::process_row;  // q, as verification sees it
  decltype(&outrider::draft_probabilities) draft_probabilities = outrider::draft_probabilities;
  decltype(&outrider::verify_accept) verify_accept = outrider::verify_accept;
  decltype(&outrider::extra_token_row) extra_token_row = outrider::extra_token_row;
  decltype(&cpu::race_weights) race_weights = cpu::race_weights;
  decltype(&outrider::verify_commit) verify_commit = outrider::verify_commit;
  // How many of the drafted tokens are verified: all. There is no such step in production.
  int (*verified)(const double* q_draft, int num_drafted) = [](const double*, int k) { return k; };
};

// The definitions of bias, penalties and min_tokens, token by token, on fp32 logits.
inline std::vector<float> reference_edit(const Rules& rules, std::vector<float> logits,
                                         const std::vector<int32_t>& drafted) {
  std::vector<int32_t> output = rules.output;
  output.insert(output.end(), drafted.begin(), drafted.end());
  for (const auto& [token, bias] : rules.bias) logits[token] += bias;
  for (int32_t v = 0; v < static_cast<int32_t>(logits.size()); ++v) {
    const auto count = std::count(output.begin(), output.end(), v);
    const auto prompted = std::count(rules.prompt.begin(), rules.prompt.end(), v);
    if (count + prompted > 0) {
      logits[v] = logits[v] < 0 ? logits[v] * rules.repetition : logits[v] / rules.repetition;
    }
    if (count == 0) continue;
    logits[v] = logits[v] - rules.frequency * static_cast<float>(count);
    logits[v] = logits[v] - rules.presence;
  }
  if (static_cast<int>(output.size()) < rules.min_tokens) {
    for (const int32_t token : rules.ends) {
      logits[token] = -std::numeric_limits<float>::infinity();
    }
  }
  return logits;
}

// What production knows of a sequence, and the rows that it makes of it.
class Editor {
 public:
  Editor(const Rules& rules, int vocab) : rules_(rules), tokens_(vocab, 0) {
    for (const int32_t token : rules.prompt) tokens_[token] |= kTokenInPrompt;
    for (const int32_t token : rules.output) ++tokens_[token];
    std::map<int32_t, ListedToken> listed;
    for (const auto& [token, bias] : rules.bias) listed[token] = {token, bias, 0};
    for (const int32_t token : rules.ends) {
      listed.try_emplace(token, ListedToken{token, 0.0f, 0}).first->second.ends = 1;
    }
    for (const auto& [token, what] : listed) {
      listed_.push_back(what);
      tokens_[token] |= kTokenListed;
    }
  }

  // Of `row`, which begins with first_token, behind the drafted tokens.
  std::vector<float> edited(decltype(&cpu::edit_logits) edit_logits, const std::vector<float>& row,
                            int first_token, const std::vector<int32_t>& drafted) const {
    std::vector<float> edited(row.size());
    const auto num_output = static_cast<int>(rules_.output.size() + drafted.size());
    const LogitEdit edit{.from = row.data(),
                         .to = edited.data(),
                         .tokens = tokens_.data(),
                         .listed = listed_.data(),
                         .drafted = drafted.data(),
                         .num_listed = static_cast<int32_t>(listed_.size()),
                         .num_drafted = static_cast<int32_t>(drafted.size()),
                         .first_token = first_token,
                         .size = static_cast<int32_t>(row.size()),
                         .repetition = rules_.repetition,
                         .frequency = rules_.frequency,
                         .presence = rules_.presence,
                         .ends_masked = num_output < rules_.min_tokens ? 1 : 0};
    edit_logits(&edit, 1, cpu::select_isa());
    return edited;
  }

 private:
  const Rules& rules_;
  std::vector<TokenState> tokens_;
  std::vector<ListedToken> listed_;
};

// The definition, in double precision, by sorting: temperature, min_p, top_k, top_p.
inline std::vector<double> reference_distribution(const std::vector<float>& logits,
                                                  const Processors& processors) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size(), 0.0);
  if (processors.mode == VerifyMode::greedy) {
    p[order[0]] = 1.0;
    return p;
  }
  const auto mass = [&](int v) {
    return std::exp((double{logits[v]} - logits[order[0]]) / processors.temperature);
  };
  if (processors.has_min_p()) {
    const double min_p = std::exp(-double{processors.min_p_reach} / processors.temperature);
    while (mass(order.back()) < min_p * (1 - 1e-9)) order.pop_back();
  }
  if (processors.top_k > 0 && processors.top_k < static_cast<int>(order.size())) {
    order.resize(processors.top_k);
  }
  double total = 0.0, sum = 0.0;
  for (const int v : order) total += mass(v);
  for (const int v : order) {
    if (processors.top_p < 1.0f && sum >= processors.top_p * total) break;
    sum += p[v] = mass(v);
  }
  for (double& x : p) x /= sum;
  return p;
}

// What each rank of a group owns of the vocabulary; uneven where it does not divide.
struct Shard {
  int first, size;
};
inline std::vector<Shard> make_shards(int vocab, int ranks) {
  std::vector<Shard> shards;
  for (int r = 0; r < ranks; ++r) {
    const int begin = vocab * r / ranks, end = vocab * (r + 1) / ranks;
    shards.push_back({begin, end - begin});
  }
  return shards;
}

// The probability that position i is accepted, once reached: u over 2^32 equal steps.
inline double acceptance(const Steps& steps, const double* p, const double* q, int num_drafted,
                         int position) {
  std::vector<double> u(num_drafted, 0.0);
  uint64_t low = 0, high = uint64_t{1} << 32;  // u below low is accepted, from high on refused
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    u[position] = static_cast<double>(middle) * 0x1p-32;
    if (steps.verify_accept(p, q, u.data(), num_drafted) > position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<double>(low) * 0x1p-32;
}

// The distribution of a sequence's next K + 1 tokens, [vocab^(K + 1)]: one step's output, and where
// it emits fewer, the target's own continuation.
class ExactOutput {
 public:
  ExactOutput(const Pair& pair, int ranks, const Steps& steps)
      : pair_(pair),
        steps_(steps),
        shards_(make_shards(pair.vocab, ranks)),
        editor_(pair.rules, pair.vocab) {
    for (size_t i = 0; i < pair.target.size(); ++i) {
      std::vector<int32_t> prefix;
      for (int index = static_cast<int>(i); index > 0; index = (index - 1) / pair.vocab) {
        prefix.insert(prefix.begin(), (index - 1) % pair.vocab);
      }
      reference_.push_back(reference_distribution(
          reference_edit(pair.rules, pair.target[i], prefix), pair.processors));
    }
    size_t cells = 1;
    for (int i = 0; i <= pair.num_drafted; ++i) cells *= pair.vocab;
    joint_.resize(cells);
  }

  double total_variation() {
    std::vector<int32_t> tokens;
    draft(tokens, 1.0);
    std::vector<double> expected(joint_.size());
    joint_.swap(expected);
    tokens.clear();
    extend(tokens, 1.0);
    double sum = 0.0;
    for (size_t i = 0; i < joint_.size(); ++i) sum += std::abs(joint_[i] - expected[i]);
    return sum / 2;
  }

  // The distribution of the first token alone, [vocab].
  std::vector<double> first_token() {
    std::vector<int32_t> tokens;
    draft(tokens, 1.0);
    std::vector<double> marginal(pair_.vocab);
    for (size_t i = 0; i < joint_.size(); ++i) {
      marginal[i / (joint_.size() / pair_.vocab)] += joint_[i];
    }
    return marginal;
  }

 private:
  // Each draft, with its probability.
  void draft(std::vector<int32_t>& tokens, double probability) {
    if (probability == 0.0) return;
    if (static_cast<int>(tokens.size()) == pair_.num_drafted) return step(tokens, probability);
    const auto row = draft_row_after(tokens);
    const auto q = cpu::process_row(row.data(), pair_.vocab, pair_.processors, cpu::select_isa());
    std::vector<double> w(pair_.vocab, 0.0);
    if (q.non_finite != 0) {
      w[0] = 1.0;  // as sample_draft says
    } else if (pair_.one_hot || pair_.processors.mode == VerifyMode::greedy) {
      w[q.choice] = 1.0;
    } else {
      cpu::race_weights(cpu::draft_row(row.data(), pair_.vocab, q), 0, pair_.vocab, w.data());
    }
    const double total = std::accumulate(w.begin(), w.end(), 0.0);
    for (int32_t v = 0; v < pair_.vocab; ++v) {
      tokens.push_back(v);
      draft(tokens, probability * w[v] / total);
      tokens.pop_back();
    }
  }

  // One verification, on all ranks.
  void step(const std::vector<int32_t>& drafted, double probability) {
    const int vocab = pair_.vocab, ranks = static_cast<int>(shards_.size());
    std::vector<float> draft_logits;
    for (int i = 0; i < pair_.num_drafted; ++i) {
      const auto row = draft_row_after({drafted.begin(), drafted.begin() + i});
      draft_logits.insert(draft_logits.end(), row.begin(), row.end());
    }
    std::vector<RowDistribution> q;
    for (int i = 0; i < pair_.num_drafted; ++i) {
      q.push_back(
          steps_.process_row(&draft_logits[i * vocab], vocab, pair_.processors, cpu::select_isa()));
    }
    int num_drafted = pair_.num_drafted;  // fewer in the bug that drops some
    std::vector<std::vector<float>> logits(ranks);
    std::vector<RowDistribution> p;
    std::vector<SequenceRows> views(ranks);
    std::vector<double> p_draft(num_drafted), q_draft(num_drafted);
    const auto prepare = [&] {
      p = distributions(drafted, num_drafted, logits);
      for (int r = 0; r < ranks; ++r) {
        views[r] = {logits[r].data(),
                    pair_.one_hot ? nullptr : draft_logits.data(),
                    drafted.data(),
                    p.data(),
                    q.data(),
                    num_drafted,
                    shards_[r].first,
                    shards_[r].size,
                    vocab};
      }
      steps_.draft_probabilities(views[0], pair_.processors, p_draft.data(), q_draft.data());
    };
    prepare();
    num_drafted = steps_.verified(q_draft.data(), num_drafted);
    if (num_drafted < pair_.num_drafted) prepare();

    double reached = probability;
    for (int n = 0; n <= num_drafted && reached > 0.0; ++n) {
      const double a = n < num_drafted
                           ? acceptance(steps_, p_draft.data(), q_draft.data(), num_drafted, n)
                           : 0.0;
      if (a < 1.0) extra_token(views, n, {drafted.begin(), drafted.begin() + n}, reached * (1 - a));
      reached *= a;
    }
  }

  // Exchange A.
  std::vector<RowDistribution> distributions(const std::vector<int32_t>& drafted, int num_drafted,
                                             std::vector<std::vector<float>>& logits) {
    const int ranks = static_cast<int>(shards_.size()), rows = num_drafted + 1;
    std::vector<VerifyRow> what;
    for (int i = 0; i < rows; ++i) {
      what.push_back({i,
                      i < num_drafted ? drafted[i] : -1,
                      pair_.processors.filtered() ? i : -1,
                      pair_.processors,
                      {},
                      0});
    }
    std::vector<ShardSummary> summaries(ranks * rows);
    std::vector<Candidate> candidates(ranks * rows * kCandidates);
    for (int r = 0; r < ranks; ++r) {
      logits[r].clear();
      for (int i = 0; i < rows; ++i) {
        const auto& row = pair_.target[prefix_index(drafted.data(), i, pair_.vocab)];
        const auto begin = row.begin() + shards_[r].first;
        const auto edited =
            editor_.edited(steps_.edit_target, {begin, begin + shards_[r].size}, shards_[r].first,
                           {drafted.begin(), drafted.begin() + i});
        logits[r].insert(logits[r].end(), edited.begin(), edited.end());
      }
      steps_.verify_summary(logits[r].data(), shards_[r].size, shards_[r].first, what.data(), rows,
                            &summaries[r * rows], &candidates[r * rows * kCandidates],
                            cpu::select_isa());
    }
    std::vector<RowDistribution> p;
    for (int i = 0; i < rows; ++i) {
      std::vector<ShardSummary> of_row;
      std::vector<const Candidate*> lists;
      for (int r = 0; r < ranks; ++r) {
        of_row.push_back(summaries[r * rows + i]);
        lists.push_back(&candidates[(r * rows + i) * kCandidates]);
      }
      p.push_back(steps_.combine_summaries(of_row.data(), lists.data(), ranks, pair_.processors));
    }
    return p;
  }

  // Exchange B: the race's outcome has the distribution of its weights over all ranks.
  void extra_token(const std::vector<SequenceRows>& views, int n, std::vector<int32_t> tokens,
                   double probability) {
    std::vector<double> w(pair_.vocab, 0.0);
    if (pair_.processors.mode == VerifyMode::greedy) {
      w[views[0].p[n].choice] = 1.0;
    } else {
      for (size_t r = 0; r < views.size(); ++r) {
        steps_.race_weights(steps_.extra_token_row(views[r], n), 0, shards_[r].size,
                            &w[shards_[r].first]);
      }
    }
    const double total = std::accumulate(w.begin(), w.end(), 0.0);
    if (total == 0.0) {
      const RaceResult nobody{std::numeric_limits<double>::infinity(), 0.0, 0.0, -1, 0.0f};
      const std::vector<RaceResult> results(views.size(), nobody);
      w[steps_.verify_commit(results.data(), static_cast<int>(results.size()), 1, views[0], n)] =
          1.0;
    }
    for (int32_t v = 0; v < pair_.vocab; ++v) {
      if (w[v] == 0.0) continue;
      tokens.push_back(v);
      extend(tokens, probability * w[v] / (total == 0.0 ? 1.0 : total));
      tokens.pop_back();
    }
  }

  void extend(std::vector<int32_t>& tokens, double probability) {
    if (static_cast<int>(tokens.size()) == pair_.num_drafted + 1) {
      size_t cell = 0;
      for (const int32_t v : tokens) cell = cell * pair_.vocab + v;
      joint_[cell] += probability;
      return;
    }
    const auto& p =
        reference_[prefix_index(tokens.data(), static_cast<int>(tokens.size()), pair_.vocab)];
    for (int32_t v = 0; v < pair_.vocab; ++v) {
      if (p[v] == 0.0) continue;
      tokens.push_back(v);
      extend(tokens, probability * p[v]);
      tokens.pop_back();
    }
  }

  // What a copy drafter proposes is nobody's logits.
  std::vector<float> draft_row_after(const std::vector<int32_t>& tokens) const {
    const auto& row =
        pair_.draft[prefix_index(tokens.data(), static_cast<int>(tokens.size()), pair_.vocab)];
    return pair_.one_hot ? row : editor_.edited(steps_.edit_draft, row, 0, tokens);
  }

  const Pair& pair_;
  const Steps& steps_;
  std::vector<Shard> shards_;
  Editor editor_;
  std::vector<std::vector<double>> reference_;  // [prefixes][vocab]
  std::vector<double> joint_;                   // [vocab^(K + 1)]
};

inline double total_variation(const Pair& pair, int ranks, const Steps& steps) {
  return ExactOutput(pair, ranks, steps).total_variation();
}

inline double worst_total_variation(const std::vector<Pair>& pairs, int ranks, const Steps& steps) {
  double worst = 0.0;
  for (const Pair& pair : pairs) worst = std::max(worst, total_variation(pair, ranks, steps));
  return worst;
}

}  // namespace outrider::exactness
