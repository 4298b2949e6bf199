// Alternatives to a step's first drafted token: what is accepted is what steps without drafts would
// have given, bit for bit, whichever of the candidates is right; and what is drawn by rejection is
// what steps without alternatives would have drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "comm/thread_communicator.h"
#include "core/float_environment.h"
#include "spec/speculative_step.h"
#include "testing/checkpoints.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kMaxRows = 64;
constexpr int64_t kSlots = 3;
constexpr int kPrompt = 9, kLength = 40;

// Makes a row of logits, of zeros before, for the next token of a slot that has this length.
using DraftLogits = std::function<void(int64_t slot, int64_t length, std::span<float> logits)>;

// Of each length a slot may have, candidates for the next token, the best first; far apart, so that
// no noise makes another one first.
using Script = std::map<std::pair<int64_t, int64_t>, Tokens>;  // by slot and length
DraftLogits scripted(const Script& script) {
  return [&script](int64_t slot, int64_t length, std::span<float> logits) {
    float logit = 20'000.0f;
    for (const int32_t token : script.at({slot, length})) {
      logits[token] = logit;
      logit -= 1000.0f;
    }
  };
}

// Drafts what it is told to.
class ToldDrafter final : public LogitDrafter {
 public:
  ToldDrafter(Backend& backend, DraftLogits draft_logits)
      : backend_(backend), draft_logits_(std::move(draft_logits)) {}

  void begin_step() override {}
  int64_t num_seen(int64_t) const override { return INT64_MAX; }
  void admit(int64_t, int64_t) override {}
  void prefill(std::span<const DraftContext>, Stream&) override {}
  uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits, Stream&) override {
    logits_ = logits;
    values_.assign(logits.size(), 0.0f);
    const auto vocab = static_cast<size_t>(logits.extent(1));
    for (size_t r = 0; r < contexts.size(); ++r) {
      draft_logits_(contexts[r].slot, contexts[r].length(),
                    std::span(values_).subspan(r * vocab, vocab));
    }
    return 0;
  }
  void enqueue(Stream& stream) override {
    backend_.copy_from_host(logits_, values_.data(), stream);
    backend_.synchronize(stream);
  }
  void truncate(int64_t, int64_t) override {}

 private:
  Backend& backend_;
  DraftLogits draft_logits_;
  TensorView logits_;
  std::vector<float> values_;
};

// One rank's model, and sequences that go on behind prompts of their own.
class Sequences {
 public:
  Sequences(Communicator& communicator, const Processors& processors, const LogitRules& rules,
            const DraftLogits& draft_logits)
      : backend_(make_cpu_backend()),
        stream_(backend_->make_stream()),
        target_(test_checkpoint("tiny"), *backend_, communicator, kMaxRows, 0),
        cache_(target_.make_kv_cache(kSlots * 8, kSlots)),
        drafter_(*backend_, draft_logits),
        step_(*backend_, communicator, target_, cache_, kSlots, kMaxRows),
        states_(kSlots) {
    cache_.deal_pages(stream_);
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      SequenceState& state = states_[slot];
      for (int i = 0; i < kPrompt; ++i) {
        state.tokens.push_back(static_cast<int32_t>(3 + 7 * slot + 5 * i));
      }
      state.processors = processors;
      state.seed = 11 + slot;
      state.drafter = &drafter_;
      step_.admit(slot, rules, state.tokens, kPrompt);
    }
  }

  // One step of these slots: K and alternatives of each.
  struct Drafts {
    int k = 0, alternatives = 0;
  };
  std::span<const SlotOutcome> step(const std::map<int64_t, Drafts>& drafts) {
    std::vector<SlotWork> work;
    for (const auto& [slot, of_slot] : drafts) {
      work.push_back({.slot = slot,
                      .prefill_end = static_cast<int64_t>(states_[slot].tokens.size()) - 1,
                      .decode = true,
                      .num_draft_tokens = of_slot.k,
                      .num_alternatives = of_slot.alternatives});
    }
    return step_.run(states_, work, 0, stream_);
  }

  const SequenceState& state(int64_t slot) const { return states_[slot]; }
  void set_mode(VerifyMode mode) {
    for (SequenceState& state : states_) state.processors.mode = mode;
  }

 private:
  std::unique_ptr<Backend> backend_;
  Stream stream_;
  Transformer target_;
  KvCache cache_;
  ToldDrafter drafter_;
  SpeculativeStep step_;
  std::vector<SequenceState> states_;
};

struct Case {
  const char* name;
  int ranks;
  Processors processors;
  bool edited = false;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

LogitRules rules_of(const Case& c) {
  LogitRules rules;
  if (c.edited) {
    rules.frequency_penalty = 0.7f;
    rules.presence_penalty = 0.4f;
    rules.min_tokens = 5;
    rules.listed = {{.token = 17, .bias = 2.0f, .ends = 0}, {.token = 0, .bias = 0, .ends = 1}};
  }
  return rules;
}

class Alternatives : public testing::TestWithParam<Case> {
 protected:
  // Calls body(sequences) on every rank.
  template <typename Body>
  void on_ranks(const Script& script, const Body& body) const {
    run_thread_ranks(GetParam().ranks, [&](Communicator& communicator) {
      set_float_environment();
      Sequences sequences(communicator, GetParam().processors, rules_of(GetParam()),
                          scripted(script));
      body(sequences, communicator.rank());
    });
  }

  // Of each slot, without drafts.
  std::vector<Tokens> plain() const {
    std::vector<Tokens> tokens(kSlots);
    on_ranks({}, [&](Sequences& sequences, int rank) {
      for (int i = 0; i < kLength; ++i) sequences.step({{0, {}}, {1, {}}, {2, {}}});
      for (int64_t slot = 0; slot < kSlots && rank == 0; ++slot) {
        tokens[slot] = sequences.state(slot).tokens;
      }
    });
    return tokens;
  }
};

// A token that is neither of these.
int32_t other_than(const Tokens& tokens) {
  int32_t token = 40;
  while (std::ranges::find(tokens, token) != tokens.end()) ++token;
  return token;
}

// Candidates of which the one at `right` is the plain text's next token; -1: none is.
Tokens candidates(int32_t next, int right) {
  Tokens found;
  for (int i = 0; i < 1 + kMaxAlternatives; ++i) {
    if (i == right) {
      found.push_back(next);
      continue;
    }
    Tokens taken = found;
    taken.push_back(next);
    found.push_back(other_than(taken));
  }
  return found;
}

TEST_P(Alternatives, WhicheverIsRightTheTextIsThePlainOne) {
  const std::vector<Tokens> expected = plain();
  // Which candidate is right differs from place to place, and from slot to slot.
  const auto right_at = [](int64_t slot, int64_t length) {
    return static_cast<int>((length * 5 + slot * 3) % 9) - 1;  // 7: none that is drafted
  };
  Script script;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    for (int64_t length = kPrompt; length < kPrompt + kLength; ++length) {
      script[{slot, length}] = candidates(expected[slot][length], right_at(slot, length));
    }
    for (int64_t length = 0; length < 8; ++length) {  // behind wrong tokens, and the end
      script[{slot, kPrompt + kLength + length}] = candidates(1, 0);
    }
  }
  std::vector<int> taken(kMaxAlternatives + 1, 0);
  int chains = 0;
  on_ranks(script, [&](Sequences& sequences, int rank) {
    std::vector<std::map<int64_t, Sequences::Drafts>> steps;
    for (int i = 0; i < kLength; ++i) {
      std::map<int64_t, Sequences::Drafts> drafts;
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        if ((i + slot) % 4 == 3) continue;  // it waits
        const auto length = static_cast<int64_t>(sequences.state(slot).tokens.size());
        if (length > kPrompt + kLength - 8) continue;
        const auto k = static_cast<int>((i + slot) % 4);
        drafts[slot] = {k, k == 0 ? 0 : static_cast<int>((i + 2 * slot) % (kMaxAlternatives + 1))};
      }
      if (drafts.empty()) continue;
      std::map<int64_t, int64_t> lengths;
      for (const auto& [slot, unused] : drafts) {
        lengths[slot] = static_cast<int64_t>(sequences.state(slot).tokens.size());
      }
      for (const SlotOutcome& outcome : sequences.step(drafts)) {
        const Sequences::Drafts asked = drafts[outcome.slot];
        const int64_t length = lengths[outcome.slot];
        const SequenceState& state = sequences.state(outcome.slot);
        const int right = right_at(outcome.slot, length);
        const bool by_alternative = asked.k > 0 && 1 <= right && right <= asked.alternatives;
        ASSERT_EQ(outcome.num_alternatives, asked.alternatives);
        ASSERT_EQ(outcome.alternative, by_alternative ? right - 1 : -1);
        ASSERT_EQ(outcome.in_cache, !by_alternative);
        ASSERT_EQ(state.is_stale, by_alternative);
        if (by_alternative) {
          ASSERT_EQ(outcome.num_accepted(), 1);
          ASSERT_EQ(outcome.verdict.num_accepted, 0);
          ASSERT_EQ(state.num_cached, length);
        } else {
          ASSERT_EQ(state.num_cached, static_cast<int64_t>(state.tokens.size()) - 1);
        }
        ASSERT_EQ(static_cast<int64_t>(state.tokens.size()), length + outcome.num_accepted() + 1);
        if (rank != 0) continue;
        if (by_alternative) ++taken[outcome.alternative];
        chains += outcome.verdict.num_accepted;
      }
    }
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const Tokens& tokens = sequences.state(slot).tokens;
      ASSERT_GT(tokens.size(), kPrompt + 20u);
      ASSERT_EQ(tokens, Tokens(expected[slot].begin(),
                               expected[slot].begin() + static_cast<int64_t>(tokens.size())));
    }
  });
  EXPECT_GT(chains, 5);
  EXPECT_GE(std::ranges::count_if(taken, [](int n) { return n > 0; }), 4);
}

// Ranks that draft other alternatives are found, though all drafted alike but for these.
TEST_P(Alternatives, RanksAgreeOnThem) {
  if (GetParam().ranks == 1) return;
  const Script one = {{{0, kPrompt}, {41, 42, 43}}, {{0, kPrompt + 1}, {44}}};
  const Script other = {{{0, kPrompt}, {41, 42, 45}}, {{0, kPrompt + 1}, {44}}};
  std::mutex mutex;
  int found = 0;
  run_thread_ranks(GetParam().ranks, [&](Communicator& communicator) {
    set_float_environment();
    Sequences sequences(communicator, GetParam().processors, rules_of(GetParam()),
                        scripted(communicator.rank() == 1 ? other : one));
    try {
      sequences.step({{0, {.k = 2, .alternatives = 2}}});
    } catch (const DisagreementError& error) {
      const std::lock_guard lock(mutex);
      found += std::string(error.what()).ends_with("on rank 1");
    }
  });
  EXPECT_EQ(found, GetParam().ranks);
}

const Processors kCoupled = {.mode = VerifyMode::coupled, .temperature = 1.3f};
// So flat that a nucleus holds more tokens than ranks offer: rows are gathered.
const Processors kGathered = {.mode = VerifyMode::coupled, .temperature = 3.0f, .top_p = 0.95f};

INSTANTIATE_TEST_SUITE_P(Ways, Alternatives,
                         testing::Values(Case{"greedy", 1, {}}, Case{"greedy_on_two", 2, {}},
                                         Case{"greedy_edited", 3, {}, true},
                                         Case{"coupled", 1, kCoupled},
                                         Case{"coupled_on_three", 3, kCoupled},
                                         Case{"coupled_edited", 2, kCoupled, true},
                                         Case{"gathered", 1, kGathered},
                                         Case{"gathered_on_two", 2, kGathered},
                                         Case{"gathered_edited", 2, kGathered, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// A draft of which a good part is refused: the target's rows are flat.
void draft_at_random(int64_t slot, int64_t length, std::span<float> logits) {
  std::mt19937 random(static_cast<uint32_t>(97 * length + slot));
  std::normal_distribution<float> normal;
  for (float& logit : logits) logit = normal(random);
}

class RejectionAlternatives : public testing::TestWithParam<Case> {};

// A step that accepts one is a step without alternatives, which ends with this token for a refused
// one, and then a coupled step without drafts: no token is drawn otherwise than by these.
TEST_P(RejectionAlternatives, ChangeNoToken) {
  int refused = 0, taken = 0, behind = 0;
  run_thread_ranks(GetParam().ranks, [&](Communicator& communicator) {
    set_float_environment();
    const LogitRules rules = rules_of(GetParam());
    Sequences with(communicator, GetParam().processors, rules, draft_at_random);
    Sequences without(communicator, GetParam().processors, rules, draft_at_random);
    for (int i = 0; i < 60; ++i) {
      std::map<int64_t, Sequences::Drafts> drafts, chains, plain;
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        if ((i + slot) % 4 == 3) continue;  // it waits
        const auto k = static_cast<int>((i + slot) % 3);
        drafts[slot] = {k, k == 0 ? 0 : kMaxAlternatives - static_cast<int>(i % 3)};
        chains[slot] = {k, 0};
      }
      for (const SlotOutcome& outcome : with.step(drafts)) {
        if (outcome.alternative >= 0) plain[outcome.slot] = {};
        if (communicator.rank() != 0 || outcome.num_drafted == 0) continue;
        refused += outcome.verdict.num_accepted == 0 ? 1 : 0;
        taken += outcome.alternative >= 0 ? 1 : 0;
        behind += outcome.alternative > 0 ? 1 : 0;
      }
      for (const SlotOutcome& outcome : without.step(chains)) {
        if (plain.contains(outcome.slot)) {
          ASSERT_EQ(outcome.verdict.num_accepted, 0);
        }
      }
      if (!plain.empty()) {
        without.set_mode(VerifyMode::coupled);
        without.step(plain);
        without.set_mode(VerifyMode::rejection);
      }
      for (const auto& [slot, unused] : drafts) {
        ASSERT_EQ(with.state(slot).tokens, without.state(slot).tokens);
      }
    }
  });
  EXPECT_GT(refused, 30);
  EXPECT_GT(taken, 8);  // in noise of their own they were one at most
  EXPECT_GT(behind, 4);
}

const Processors kRejection = {.mode = VerifyMode::rejection};
const Processors kLenient = {.mode = VerifyMode::rejection, .lenience = 0.6f};
const Processors kRejectionGathered = {
    .mode = VerifyMode::rejection, .temperature = 3.0f, .top_p = 0.95f};

INSTANTIATE_TEST_SUITE_P(Ways, RejectionAlternatives,
                         testing::Values(Case{"whole", 1, kRejection},
                                         Case{"on_three", 3, kRejection},
                                         Case{"edited", 2, kRejection, true},
                                         Case{"lenient", 2, kLenient},
                                         Case{"gathered", 1, kRejectionGathered},
                                         Case{"gathered_on_two", 2, kRejectionGathered},
                                         Case{"gathered_edited", 2, kRejectionGathered, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace outrider
