// The exactness suite is alive: each mistake that speculative sampling invites, planted on purpose,
// is seen by its distance from the target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "exactness.h"

namespace outrider::exactness {
namespace {

struct PlantedBug {
  const char* name;
  Steps steps;
};

using cpu::Isa;

int accept_with(const double* p, const double* q, const double* u, int num_drafted,
                bool (*accepts)(double p, double q, double u)) {
  int n = 0;
  while (n < num_drafted && accepts(p[n], q[n], u[n])) ++n;
  return n;
}

// The same rows, as if the token had been copied.
SequenceRows as_one_hot(SequenceRows rows) {
  rows.draft_logits = nullptr;
  return rows;
}

void one_hot_probabilities(const SequenceRows& rows, const Processors& processors, double* p,
                           double* q) {
  outrider::draft_probabilities(as_one_hot(rows), processors, p, q);
}

RaceRow one_hot_extra_token_row(const SequenceRows& rows, int n) {
  return outrider::extra_token_row(as_one_hot(rows), n);
}

std::vector<PlantedBug> planted_bugs() {
  std::vector<PlantedBug> bugs;
  const auto plant = [&](const char* name, auto plant_in) {
    bugs.push_back({name, {}});
    plant_in(bugs.back().steps);
  };
  plant("accept on u < p", [](Steps& s) {
    s.verify_accept = [](const double* p, const double* q, const double* u, int k) {
      return accept_with(p, q, u, k, [](double p, double, double u) { return u < p; });
    };
  });
  plant("accept on u p < q", [](Steps& s) {
    s.verify_accept = [](const double* p, const double* q, const double* u, int k) {
      return accept_with(p, q, u, k, [](double p, double q, double u) { return u * p < q; });
    };
  });
  plant("lenience left at 0.9", [](Steps& s) {
    s.verify_accept = [](const double* p, const double* q, const double* u, int k) {
      return accept_with(p, q, u, k, [](double p, double q, double u) { return u * 0.9 * q < p; });
    };
  });
  plant("accept whatever is kept", [](Steps& s) {
    s.verify_accept = [](const double* p, const double* q, const double* u, int k) {
      return accept_with(p, q, u, k, [](double p, double, double) { return p > 0.0; });
    };
  });
  plant("residual from p", [](Steps& s) {
    s.extra_token_row = [](const SequenceRows& rows, int n) {
      RaceRow row = outrider::extra_token_row(rows, n);
      row.q_logits = nullptr;
      return row;
    };
  });
  plant("residual from q", [](Steps& s) {
    s.extra_token_row = [](const SequenceRows& rows, int n) {
      RaceRow row = outrider::extra_token_row(rows, n);
      if (row.q_logits == nullptr) return row;
      row.p_logits = row.q_logits;
      row.p = row.q;
      row.q_logits = nullptr;
      return row;
    };
  });
  plant("residual as |p - q|", [](Steps& s) {
    s.race_weights = [](const RaceRow& row, int32_t begin, int32_t count, double* w) {
      cpu::race_weights(row, begin, count, w);
      if (row.q_logits == nullptr) return;
      for (int32_t i = 0; i < count; ++i) {
        const int32_t token = row.first_token + begin + i;
        w[i] = std::abs(outrider::probability(row.p, row.p_logits[begin + i], token) -
                        outrider::probability(row.q, row.q_logits[begin + i], token));
      }
    };
  });
  plant("residual of weights that are not normalised", [](Steps& s) {
    s.extra_token_row = [](const SequenceRows& rows, int n) {
      RaceRow row = outrider::extra_token_row(rows, n);
      row.p.sum = row.q.sum = 1.0;
      return row;
    };
  });
  plant("residual unnormalised over filters", [](Steps& s) {
    s.process_row = [](const float* logits, int64_t vocab, const Processors& processors, Isa isa) {
      RowDistribution q = cpu::process_row(logits, vocab, processors, isa);
      Processors unfiltered = processors;
      unfiltered.top_k = 0;
      unfiltered.top_p = 1.0f;
      q.sum = cpu::process_row(logits, vocab, unfiltered, isa).sum;
      return q;
    };
  });
  plant("q unfiltered", [](Steps& s) {
    s.process_row = [](const float* logits, int64_t vocab, const Processors& processors, Isa isa) {
      Processors unfiltered = processors;
      unfiltered.top_k = 0;
      unfiltered.top_p = 1.0f;
      return cpu::process_row(logits, vocab, unfiltered, isa);
    };
  });
  plant("top_p on q only", [](Steps& s) {
    s.combine_summaries = [](const ShardSummary* summaries, const Candidate* const* candidates,
                             int ranks, const Processors& processors) {
      Processors unfiltered = processors;
      unfiltered.top_p = 1.0f;
      return outrider::combine_summaries(summaries, candidates, ranks, unfiltered);
    };
  });
  plant("temperature on p only", [](Steps& s) {
    s.process_row = [](const float* logits, int64_t vocab, const Processors& processors, Isa isa) {
      Processors plain = processors;
      plain.temperature = 1.0f;
      return cpu::process_row(logits, vocab, plain, isa);
    };
  });
  plant("q one-hot in the accept test of a sampled draft",
        [](Steps& s) { s.draft_probabilities = one_hot_probabilities; });
  plant("q one-hot in the residual of a sampled draft",
        [](Steps& s) { s.extra_token_row = one_hot_extra_token_row; });
  plant("stale q: the row of the position before", [](Steps& s) {
    s.draft_probabilities = [](const SequenceRows& rows, const Processors& processors, double* p,
                               double* q) {
      outrider::draft_probabilities(rows, processors, p, q);
      if (rows.draft_logits == nullptr) return;
      for (int i = 1; i < rows.num_drafted; ++i) {
        const int32_t token = rows.drafted[i];
        q[i] = outrider::probability(
            rows.q[i - 1], rows.draft_logits[int64_t{i - 1} * rows.vocab_size + token], token);
      }
    };
  });
  plant("off-by-one target row", [](Steps& s) {
    s.verify_summary = [](const float* logits, int64_t shard_size, int32_t first_token,
                          const VerifyRow* rows, int64_t num_rows, ShardSummary* summaries,
                          Candidate* candidates, Isa isa) {
      std::vector<VerifyRow> next(rows, rows + num_rows);
      for (int64_t i = 0; i + 1 < num_rows; ++i) ++next[i].logits_row;
      cpu::verify_summary(logits, shard_size, first_token, next.data(), num_rows, summaries,
                          candidates, isa);
    };
  });
  plant("extra token from the row before", [](Steps& s) {
    s.extra_token_row = [](const SequenceRows& rows, int n) {
      RaceRow row = outrider::extra_token_row(rows, n);
      if (n > 0) row.p_logits -= rows.shard_size, row.p = rows.p[n - 1];
      return row;
    };
  });
  plant("bonus drawn from the residual", [](Steps& s) {
    s.extra_token_row = [](const SequenceRows& rows, int n) {
      RaceRow row = outrider::extra_token_row(rows, n);
      if (n < rows.num_drafted || n == 0 || rows.draft_logits == nullptr) return row;
      row.q_logits = rows.draft_logits + int64_t{n - 1} * rows.vocab_size + rows.first_token;
      row.q = rows.q[n - 1];
      return row;
    };
  });
  plant("refused, then drawn with the refused token", [](Steps& s) {
    s.extra_token_row = [](const SequenceRows& rows, int n) {
      RaceRow row = outrider::extra_token_row(rows, n);
      row.excluded = -1;
      return row;
    };
  });
  plant("drop of a low-confidence draft", [](Steps& s) {
    s.verified = [](const double* q_draft, int num_drafted) {
      int kept = 0;
      while (kept < num_drafted && q_draft[kept] >= 0.3) ++kept;
      return kept;
    };
  });
  plant("first rank's sum for all", [](Steps& s) {
    s.combine_summaries = [](const ShardSummary* summaries, const Candidate* const* candidates,
                             int ranks, const Processors& processors) {
      RowDistribution row = outrider::combine_summaries(summaries, candidates, ranks, processors);
      if (!processors.filtered()) row.sum = summaries[0].sum_exp;
      return row;
    };
  });
  return bugs;
}

template <typename Change>
void edit_changed(const LogitEdit* edits, int64_t n, Isa isa, Change change) {
  std::vector<LogitEdit> changed(edits, edits + n);
  for (LogitEdit& edit : changed) change(edit);
  cpu::edit_logits(changed.data(), n, isa);
}

void edit_nothing(const LogitEdit* edits, int64_t n, Isa) {
  for (int64_t i = 0; i < n; ++i) std::copy_n(edits[i].from, edits[i].size, edits[i].to);
}

std::vector<PlantedBug> planted_editing_bugs() {
  std::vector<PlantedBug> bugs;
  const auto plant = [&](const char* name, auto plant_in) {
    bugs.push_back({name, {}});
    plant_in(bugs.back().steps);
  };
  // In both, so that p and q agree with each other.
  const auto plant_edit = [&](const char* name, decltype(&cpu::edit_logits) edit) {
    bugs.push_back({name, {}});
    bugs.back().steps.edit_draft = bugs.back().steps.edit_target = edit;
  };
  plant_edit("penalties ignore drafted tokens", [](const LogitEdit* edits, int64_t n, Isa isa) {
    edit_changed(edits, n, isa, [](LogitEdit& e) { e.num_drafted = 0; });
  });
  plant_edit("the last drafted token is not counted yet",
             [](const LogitEdit* edits, int64_t n, Isa isa) {
               edit_changed(edits, n, isa,
                            [](LogitEdit& e) { e.num_drafted = std::max(e.num_drafted - 1, 0); });
             });
  plant_edit("min_tokens counts the step as one token",
             [](const LogitEdit* edits, int64_t n, Isa isa) {
               edit_changed(edits, n, isa, [](LogitEdit& e) {
                 if (e.num_drafted > 0) e.ends_masked = 1;
               });
             });
  plant_edit("min_tokens ignored", [](const LogitEdit* edits, int64_t n, Isa isa) {
    edit_changed(edits, n, isa, [](LogitEdit& e) { e.ends_masked = 0; });
  });
  plant_edit("bias left out", [](const LogitEdit* edits, int64_t n, Isa isa) {
    std::vector<ListedToken> listed(edits->listed, edits->listed + edits->num_listed);
    for (ListedToken& token : listed) token.bias = 0.0f;
    edit_changed(edits, n, isa, [&](LogitEdit& e) { e.listed = listed.data(); });
  });
  plant_edit("presence counted each time", [](const LogitEdit* edits, int64_t n, Isa isa) {
    edit_changed(edits, n, isa, [](LogitEdit& e) {
      e.frequency += e.presence;
      e.presence = 0.0f;
    });
  });
  plant_edit("repetition of the output alone", [](const LogitEdit* edits, int64_t n, Isa isa) {
    int32_t vocab = edits->first_token + edits->size;
    std::vector<TokenState> tokens(edits->tokens, edits->tokens + vocab);
    for (TokenState& state : tokens) state &= ~kTokenInPrompt;
    edit_changed(edits, n, isa, [&](LogitEdit& e) { e.tokens = tokens.data(); });
  });
  plant("edits of q only", [](Steps& s) { s.edit_target = edit_nothing; });
  plant("min_p before temperature", [](Steps& s) {
    static const auto cold = [](Processors processors) {
      if (processors.has_min_p()) processors.min_p_reach /= processors.temperature;
      return processors;
    };
    s.process_row = [](const float* logits, int64_t vocab, const Processors& processors, Isa isa) {
      return cpu::process_row(logits, vocab, cold(processors), isa);
    };
    s.combine_summaries = [](const ShardSummary* summaries, const Candidate* const* candidates,
                             int ranks, const Processors& processors) {
      return outrider::combine_summaries(summaries, candidates, ranks, cold(processors));
    };
  });
  plant("min_p on q only", [](Steps& s) {
    s.combine_summaries = [](const ShardSummary* summaries, const Candidate* const* candidates,
                             int ranks, const Processors& processors) {
      Processors plain = processors;
      plain.min_p_reach = -1.0f;
      return outrider::combine_summaries(summaries, candidates, ranks, plain);
    };
  });
  plant("top_p over what min_p had cut", [](Steps& s) {
    s.combine_summaries = [](const ShardSummary* summaries, const Candidate* const* candidates,
                             int ranks, const Processors& processors) {
      Processors without = processors;
      without.min_p_reach = -1.0f;
      RowDistribution row = outrider::combine_summaries(summaries, candidates, ranks, without);
      row.cut_logit = std::max(row.cut_logit, min_p_logit(processors, row.max));
      return row;
    };
  });
  return bugs;
}

// Edits of p alone, where q is known for what it is, only cost acceptance.
TEST(PlantedBugs, AnUneditedDraftIsExact) {
  Steps steps;
  steps.edit_draft = edit_nothing;
  EXPECT_LT(worst_total_variation(edited_pairs(1, 6), 2, steps), 1e-6);
}

TEST(PlantedBugs, EachOfTheEditsIsSeen) {
  const std::vector<Pair> pairs = edited_pairs(1, 6);
  for (const PlantedBug& bug : planted_editing_bugs()) {
    const double worst = worst_total_variation(pairs, 2, bug.steps);
    std::printf("%-50s total variation %.3f\n", bug.name, worst);
    EXPECT_GT(worst, 1e-3) << bug.name;
  }
}

// Far above the 1e-6 that production keeps to, far below what any of them does at worst.
TEST(PlantedBugs, EachIsSeen) {
  const std::vector<Pair> pairs = random_pairs(1, 4);
  for (const PlantedBug& bug : planted_bugs()) {
    const double worst = worst_total_variation(pairs, 2, bug.steps);
    std::printf("%-50s total variation %.3f\n", bug.name, worst);
    EXPECT_GT(worst, 1e-3) << bug.name;
  }
}

// A one-hot q in both places is no bias, whatever was drafted: p(x) to x, and with 1 - p(x) the
// rest of p. It accepts less, which the measured acceptance shows (verifier_test), and not this
// suite.
TEST(PlantedBugs, AOneHotThroughoutIsExact) {
  Steps steps;
  steps.draft_probabilities = one_hot_probabilities;
  steps.extra_token_row = one_hot_extra_token_row;
  EXPECT_LT(worst_total_variation(random_pairs(1, 4), 2, steps), 1e-6);
}

double variation_from(const std::vector<double>& expected, const std::vector<double>& frequency) {
  double sum = 0.0;
  for (size_t v = 0; v < expected.size(); ++v) sum += std::abs(frequency[v] - expected[v]);
  return sum / 2;
}

// That a step of at most one drafted token emits first.
int32_t first_token(const SequenceRows& rows, double p_draft, double q_draft, double u,
                    const RandomKey& key) {
  if (outrider::verify_accept(&p_draft, &q_draft, &u, rows.num_drafted) == 1) return *rows.drafted;
  const RaceResult result = cpu::extra_token_race(rows, 0, key, cpu::select_isa());
  return outrider::verify_commit(&result, 1, 1, rows, 0);
}

// One step of one drafted token through production's own randomness; returns the total variation
// of the first emitted token from p. draft: with whose noise the token is drafted.
double sampled_total_variation(double (*accept_u)(const RandomKey&, int offset),
                               VerifyMode draft_mode = VerifyMode::rejection) {
  const std::vector<float> target{0.0f, 1.0f, -0.5f, 0.3f}, draft{0.8f, -0.2f, 0.1f, 0.4f};
  const Processors processors{.mode = VerifyMode::rejection};
  const Isa isa = cpu::select_isa();
  RowDistribution p = cpu::process_row(target.data(), 4, processors, isa);
  const RowDistribution q = cpu::process_row(draft.data(), 4, processors, isa);
  constexpr int kSamples = 200'000;
  std::vector<double> frequency(4, 0.0);
  for (uint32_t base = 0; base < kSamples; ++base) {
    const RandomKey key{.seed = 11, .choice = 0, .base = base};
    const int32_t drafted = cpu::sample_draft(
        draft.data(), 4, q, {.processors = {.mode = draft_mode}, .key = key}, isa);
    p.draft_logit = target[drafted];
    const SequenceRows rows{target.data(), draft.data(), &drafted, &p, &q, 1, 0, 4, 4};
    double p_draft, q_draft;
    outrider::draft_probabilities(rows, processors, &p_draft, &q_draft);
    const double u = accept_u(key, 0);
    frequency[first_token(rows, p_draft, q_draft, u, key)] += 1.0 / kSamples;
  }
  return variation_from(reference_distribution(target, processors), frequency);
}

// Each frequency's standard deviation is at most 0.0011, so production stays within 0.01.
TEST(PlantedBugs, CountersSharedByDraftAndAcceptAreSeen) {
  EXPECT_LT(sampled_total_variation(accept_uniform), 0.01);
  const double planted = sampled_total_variation([](const RandomKey& key, int offset) {
    return random_word(key, offset, Purpose::draft, 0) * 0x1p-32;
  });
  std::printf("%-50s total variation %.3f\n", "counters shared by draft and accept", planted);
  EXPECT_GT(planted, 0.02);
}

TEST(PlantedBugs, CoupledNoiseReusedInTheAcceptTestIsSeen) {
  EXPECT_LT(sampled_total_variation(accept_uniform, VerifyMode::coupled), 0.01);
  const double planted = sampled_total_variation(
      [](const RandomKey& key, int offset) {
        return random_word(coupled_key(key, offset), 0, Purpose::coupled, 0) * 0x1p-32;
      },
      VerifyMode::coupled);
  std::printf("%-50s total variation %.3f\n", "coupled noise reused in the accept test", planted);
  EXPECT_GT(planted, 0.02);
}

// A step refuses its first token, and whoever plans the next one has seen what was drafted behind
// it: that one drafts one token, if token 0 was, and else none. Returns the total variation from p
// of the token that comes there. reused: its draws are those of the step before at the same
// position.
double total_variation_behind_a_refusal(bool reused) {
  const std::vector<float> target{0.0f, 1.0f, -0.5f, 0.3f}, draft{0.8f, -0.2f, 0.1f, 0.4f};
  const Processors processors{.mode = VerifyMode::rejection};
  const Isa isa = cpu::select_isa();
  RowDistribution p = cpu::process_row(target.data(), 4, processors, isa);
  const RowDistribution q = cpu::process_row(draft.data(), 4, processors, isa);
  const auto drafted_by = [&](const RandomKey& key, int offset) {
    return cpu::sample_draft(
        draft.data(), 4, q,
        {.processors = {.mode = VerifyMode::rejection}, .key = key, .offset = offset}, isa);
  };
  constexpr int kSamples = 200'000;
  std::vector<double> frequency(4, 0.0);
  for (uint32_t i = 0; i < kSamples; ++i) {
    const RandomKey before{.seed = 11, .choice = 0, .base = 2 * i};
    const RandomKey key{.seed = 11, .choice = 0, .base = reused ? 2 * i : 2 * i + 1};
    const int offset = reused ? 1 : 0;
    const int num_drafted = drafted_by(before, 1) == 0 ? 1 : 0;
    const int32_t drafted = drafted_by(key, offset);
    p.draft_logit = target[drafted];
    const SequenceRows rows{target.data(), draft.data(), &drafted, &p, &q, num_drafted, 0, 4, 4};
    double p_draft = 0, q_draft = 0;
    if (num_drafted > 0) outrider::draft_probabilities(rows, processors, &p_draft, &q_draft);
    const double u = accept_uniform(key, offset);
    frequency[first_token(rows, p_draft, q_draft, u, key)] += 1.0 / kSamples;
  }
  return variation_from(reference_distribution(target, processors), frequency);
}

TEST(PlantedBugs, DrawsReusedBehindARefusalAreSeen) {
  EXPECT_LT(total_variation_behind_a_refusal(false), 0.01);
  const double planted = total_variation_behind_a_refusal(true);
  std::printf("%-50s total variation %.3f\n", "draws reused behind a refusal", planted);
  EXPECT_GT(planted, 0.02);
}

}  // namespace
}  // namespace outrider::exactness
