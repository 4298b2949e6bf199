// Alternatives to a step's first drafted token: what is accepted is what steps without drafts would
// have given, bit for bit, whichever of the candidates is right.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
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

// Drafts what it is told to: of each length a slot may have, candidates for the next token, the
// best first.
class ScriptedDrafter final : public LogitDrafter {
 public:
  using Script = std::map<std::pair<int64_t, int64_t>, Tokens>;  // by slot and length

  ScriptedDrafter(Backend& backend, const Script& script) : backend_(backend), script_(script) {}

  void begin_step() override {}
  int64_t num_seen(int64_t) const override { return INT64_MAX; }
  void admit(int64_t, int64_t) override {}
  void prefill(std::span<const DraftContext>, Stream&) override {}
  uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits, Stream&) override {
    logits_ = logits;
    rows_.clear();
    for (const DraftContext& context : contexts) {
      rows_.push_back(script_.at({context.slot, context.length()}));
    }
    return 0;
  }
  void enqueue(Stream& stream) override {
    std::vector<float> values(logits_.size(), 0.0f);
    for (size_t r = 0; r < rows_.size(); ++r) {
      // Far apart, so that no noise makes another one first.
      float logit = 20'000.0f;
      for (const int32_t token : rows_[r]) {
        values[r * logits_.extent(1) + token] = logit;
        logit -= 1000.0f;
      }
    }
    backend_.copy_from_host(logits_, values.data(), stream);
    backend_.synchronize(stream);
  }
  void truncate(int64_t, int64_t) override {}

 private:
  Backend& backend_;
  const Script& script_;
  TensorView logits_;
  std::vector<Tokens> rows_;
};

// One rank's model, and sequences that go on behind prompts of their own.
class Sequences {
 public:
  Sequences(Communicator& communicator, const Processors& processors, const LogitRules& rules,
            const ScriptedDrafter::Script& script)
      : backend_(make_cpu_backend()),
        stream_(backend_->make_stream()),
        target_(test_checkpoint("tiny"), *backend_, communicator, kMaxRows, 0),
        cache_(target_.make_kv_cache(kSlots * 8, kSlots)),
        drafter_(*backend_, script),
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

 private:
  std::unique_ptr<Backend> backend_;
  Stream stream_;
  Transformer target_;
  KvCache cache_;
  ScriptedDrafter drafter_;
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

class Alternatives : public testing::TestWithParam<Case> {
 protected:
  LogitRules rules() const {
    LogitRules rules;
    if (GetParam().edited) {
      rules.frequency_penalty = 0.7f;
      rules.presence_penalty = 0.4f;
      rules.min_tokens = 5;
      rules.listed = {{.token = 17, .bias = 2.0f, .ends = 0}, {.token = 0, .bias = 0, .ends = 1}};
    }
    return rules;
  }

  // Calls body(sequences) on every rank.
  template <typename Body>
  void on_ranks(const ScriptedDrafter::Script& script, const Body& body) const {
    run_thread_ranks(GetParam().ranks, [&](Communicator& communicator) {
      set_float_environment();
      Sequences sequences(communicator, GetParam().processors, rules(), script);
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
  ScriptedDrafter::Script script;
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
  const ScriptedDrafter::Script one = {{{0, kPrompt}, {41, 42, 43}}, {{0, kPrompt + 1}, {44}}};
  const ScriptedDrafter::Script other = {{{0, kPrompt}, {41, 42, 45}}, {{0, kPrompt + 1}, {44}}};
  std::mutex mutex;
  int found = 0;
  run_thread_ranks(GetParam().ranks, [&](Communicator& communicator) {
    set_float_environment();
    Sequences sequences(communicator, GetParam().processors, rules(),
                        communicator.rank() == 1 ? other : one);
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

}  // namespace
}  // namespace outrider
