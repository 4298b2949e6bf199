// The coupled way to verify, through the functions that Verifier composes, over one, two and three
// shards: its output is a function of the seed and the target alone, and a draft that is the target
// is never refused. A planted bug replaces one of the functions.
#include "kernels/coupled.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "exactness.h"

namespace outrider {
namespace {

using cpu::Isa;
using exactness::Shard;

constexpr int kVocab = 16, kTokens = 24;

struct Steps {
  decltype(&cpu::sample_draft) sample_draft = cpu::sample_draft;
  RandomKey (*target_key)(const RandomKey& step, int offset) = coupled_key;
};

// Rows of logits behind each token, for target and draft.
struct Language {
  std::vector<std::vector<float>> target, draft;

  explicit Language(uint32_t seed, float distance) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.5f);
    for (int i = 0; i < kVocab; ++i) {
      target.emplace_back();
      for (int v = 0; v < kVocab; ++v) target.back().push_back(normal(random));
      draft.push_back(target.back());
      for (float& x : draft.back()) x += distance * normal(random);
    }
  }
};

struct Setting {
  Processors processors;
  int num_drafted, ranks;
  bool copied = false;  // the draft's arg max, as a copy drafter would propose
};

struct Text {
  std::vector<int32_t> tokens;
  int drafted = 0, accepted = 0;
};

// One step behind text.tokens.
void step(const Language& language, const Setting& setting, uint64_t seed, const Steps& steps,
          Text& text) {
  const Isa isa = cpu::select_isa();
  const int k = setting.num_drafted;
  const RandomKey key{.seed = seed, .choice = 1, .base = static_cast<uint32_t>(text.tokens.size())};
  std::vector<int32_t> drafted;
  std::vector<const std::vector<float>*> rows{&language.target[text.tokens.back()]};
  int32_t last = text.tokens.back();
  for (int i = 0; i < k; ++i) {
    const auto& logits = language.draft[last];
    const auto q = cpu::process_row(logits.data(), kVocab, setting.processors, isa);
    last = setting.copied ? q.choice
                          : steps.sample_draft(
                                logits.data(), kVocab, q,
                                {.processors = setting.processors, .key = key, .offset = i}, isa);
    drafted.push_back(last);
    rows.push_back(&language.target[last]);
  }
  const bool filtered = setting.processors.filtered();
  std::vector<VerifyRow> what;
  for (int i = 0; i <= k; ++i) {
    what.push_back({.logits_row = i,
                    .draft_token = i < k ? drafted[i] : -1,
                    .candidates_slot = filtered ? i : -1,
                    .processors = setting.processors,
                    .key = steps.target_key(key, i),
                    .races = !filtered});
  }
  const size_t bytes = SummaryMessage::bytes(k + 1, filtered ? k + 1 : 0);
  std::vector<std::byte> all(setting.ranks * bytes);
  const auto shards = exactness::make_shards(kVocab, setting.ranks);
  for (int r = 0; r < setting.ranks; ++r) {
    std::vector<float> logits;
    for (const auto* row : rows) {
      const auto begin = row->begin() + shards[r].first;
      logits.insert(logits.end(), begin, begin + shards[r].size);
    }
    const SummaryMessage message{all.data() + r * bytes, k + 1};
    cpu::verify_summary(logits.data(), shards[r].size, shards[r].first, what.data(), k + 1,
                        message.summaries(), message.candidates(), isa);
  }
  std::vector<RowDistribution> p(k + 1);
  ASSERT_EQ(
      cpu::combine_rows({all.data(), bytes, k + 1, setting.ranks}, what.data(), k + 1, p.data()),
      0u);
  const SequenceToVerify sequence{.rows = {.target_logits = nullptr,
                                           .draft_logits = nullptr,
                                           .drafted = drafted.data(),
                                           .p = p.data(),
                                           .q = nullptr,
                                           .num_drafted = k,
                                           .first_token = 0,
                                           .shard_size = kVocab,
                                           .vocab_size = kVocab},
                                  .processors = setting.processors,
                                  .key = key};
  Verdict verdict;
  cpu::accept_step(&sequence, 1, &verdict);
  ASSERT_EQ(verdict.unresolved, 0);
  ASSERT_FALSE(races(sequence, verdict));
  text.drafted += verdict.alpha_rows;
  text.accepted += verdict.num_accepted;
  text.tokens.insert(text.tokens.end(), drafted.begin(), drafted.begin() + verdict.num_accepted);
  text.tokens.push_back(verdict.extra_token);
  EXPECT_EQ(verdict.extra_logit, (*rows[verdict.num_accepted])[verdict.extra_token]);
}

Text decode(const Language& language, const Setting& setting, uint64_t seed,
            const Steps& steps = {}) {
  Text text{.tokens = {0}};
  while (text.tokens.size() <= kTokens) step(language, setting, seed, steps, text);
  text.tokens.resize(kTokens + 1);
  return text;
}

Processors coupled(float temperature, int32_t top_k, float top_p) {
  return {VerifyMode::coupled, temperature, top_k, top_p};
}

const Processors kVariants[] = {coupled(1.0f, 0, 1.0f), coupled(0.6f, 0, 1.0f),
                                coupled(1.0f, 3, 1.0f), coupled(1.5f, 0, 0.7f),
                                coupled(0.8f, 9, 0.9f)};

// Texts that differ from the one without drafts, over K, drafters and shards.
int differing_texts(const Steps& steps, int num_seeds) {
  int differing = 0;
  const Language near(1, 0.3f), far(1, 2.0f);
  for (const Processors& processors : kVariants) {
    for (int seed = 0; seed < num_seeds; ++seed) {
      const Text plain = decode(near, {processors, 0, 1}, seed, steps);
      for (const int ranks : {1, 2, 3}) {
        for (int k = 0; k <= 8; ++k) {
          for (const Language* language : {&near, &far}) {
            for (const bool copied : {false, true}) {
              const Text text = decode(*language, {processors, k, ranks, copied}, seed, steps);
              differing += text.tokens == plain.tokens ? 0 : 1;
            }
          }
        }
      }
    }
  }
  return differing;
}

TEST(Coupled, OutputIsAFunctionOfTheSeedAndTheTargetAlone) { EXPECT_EQ(differing_texts({}, 8), 0); }

// Of drafted tokens that were accepted or refused.
double acceptance(float distance, const Steps& steps) {
  const Language language(2, distance);
  int drafted = 0, accepted = 0;
  for (const Processors& processors : kVariants) {
    for (int seed = 0; seed < 40; ++seed) {
      const Text text = decode(language, {processors, 4, 2}, seed, steps);
      drafted += text.drafted;
      accepted += text.accepted;
    }
  }
  return static_cast<double>(accepted) / drafted;
}

TEST(Coupled, ADraftThatIsTheTargetIsNeverRefused) {
  EXPECT_EQ(acceptance(0.0f, {}), 1.0);
  const double near = acceptance(0.3f, {}), far = acceptance(2.0f, {});
  EXPECT_LT(near, 1.0);
  EXPECT_LT(far, near);
}

// The bound of Gumbel coupling, (1 - TV) / (1 + TV), over 20,000 positions of one row: its standard
// deviation is below 0.0036. And no coupling agrees more often than 1 - TV.
TEST(Coupled, AcceptsBetweenItsBounds) {
  const Language language(3, 0.7f);
  const Isa isa = cpu::select_isa();
  for (const Processors& processors : kVariants) {
    const auto& target = language.target[0];
    const auto& draft = language.draft[0];
    const auto p = exactness::reference_distribution(target, processors);
    const auto q = exactness::reference_distribution(draft, processors);
    double total_variation = 0;
    for (int v = 0; v < kVocab; ++v) total_variation += std::abs(p[v] - q[v]) / 2;
    const auto processed_p = cpu::process_row(target.data(), kVocab, processors, isa);
    const auto processed_q = cpu::process_row(draft.data(), kVocab, processors, isa);
    constexpr int kPositions = 20'000;
    int agreed = 0;
    for (uint32_t position = 0; position < kPositions; ++position) {
      const RandomKey key{.seed = 4, .choice = 0, .base = position};
      const auto draw = [&](const std::vector<float>& logits, const RowDistribution& row) {
        return cpu::sample_draft(logits.data(), kVocab, row, {.processors = processors, .key = key},
                                 isa);
      };
      agreed += draw(target, processed_p) == draw(draft, processed_q) ? 1 : 0;
    }
    const double rate = static_cast<double>(agreed) / kPositions;
    EXPECT_GT(rate, (1 - total_variation) / (1 + total_variation) - 0.018);
    EXPECT_LT(rate, 1 - total_variation + 0.018);
  }
}

TEST(CoupledPlantedBugs, NoiseKeyedByTheStepIsSeen) {
  Steps steps;
  steps.target_key = [](const RandomKey& step, int) { return step; };
  EXPECT_GT(differing_texts(steps, 1), 0);
}

TEST(CoupledPlantedBugs, ADraftWithOtherNoiseIsSeen) {
  Steps steps;
  steps.sample_draft = [](const float* logits, int64_t vocab_size, const RowDistribution& q,
                          const DraftRow& row, Isa isa) {
    DraftRow other = row;
    other.processors.mode = VerifyMode::rejection;
    return cpu::sample_draft(logits, vocab_size, q, other, isa);
  };
  EXPECT_EQ(differing_texts(steps, 1), 0);  // a drafter decides nothing
  EXPECT_LT(acceptance(0.0f, steps), 0.9);
}

}  // namespace
}  // namespace outrider
