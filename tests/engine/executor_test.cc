// What ranks compare: the digest of a rank's state, and the fingerprint of its numerics; what an
// executor measures at its start, and a scheduler goes by.
#include "engine/executor.h"

#include <gtest/gtest.h>
#include <immintrin.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "engine/engine.h"
#include "kernels/cpu/isa.h"
#include "testing/checkpoints.h"
#include "testing/every_drafter.h"
#include "testing/read_file.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

EngineOptions options() {
  return {.model = test_checkpoint("tiny"), .draft = test_checkpoint("tiny-draft")};
}

StepPlan first_plan(std::vector<int32_t> prompt, DrafterKind drafter) {
  const auto last = static_cast<int64_t>(prompt.size()) - 1;
  StepPlan plan{.step = 1};
  plan.admitted.push_back({.slot = 0, .tokens = std::move(prompt), .drafter = drafter});
  plan.target_pages.push_back({.slot = 0, .first = 0, .pages = {0}});
  if (drafter == DrafterKind::model) plan.draft_pages = plan.target_pages;
  plan.work.push_back({.slot = 0,
                       .decode = 1,
                       .prefill_end = last,
                       .num_draft_tokens = drafter == DrafterKind::model ? 2 : 0});
  return plan;
}

class One {
 public:
  explicit One(const EngineOptions& options)
      : backend_(make_cpu_backend()),
        self_(make_self_communicator()),
        executor_(options, *backend_, *self_) {}
  Executor& operator*() { return executor_; }
  Executor* operator->() { return &executor_; }
  const Executor* operator->() const { return &executor_; }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> self_;
  Executor executor_;
};

TEST(Executor, TheDigestOfTheStateFollowsTokensAndCaches) {
  One a(options()), b(options()), c(options());
  EXPECT_EQ(a->state_digest(), b->state_digest());
  const uint64_t fresh = a->state_digest();
  a->execute(first_plan({5, 6, 7, 8}, DrafterKind::model).serialise());
  b->execute(first_plan({5, 6, 7, 8}, DrafterKind::model).serialise());
  c->execute(first_plan({5, 6, 9, 8}, DrafterKind::model).serialise());  // as many, but others
  EXPECT_NE(a->state_digest(), fresh);
  EXPECT_EQ(a->state_digest(), b->state_digest());
  EXPECT_NE(a->state_digest(), c->state_digest());
  // The same tokens in another page, and with one less of them in the cache.
  StepPlan elsewhere = first_plan({5, 6, 7, 8}, DrafterKind::none), less = elsewhere;
  One here(options()), there(options()), behind(options());
  here->execute(elsewhere.serialise());
  elsewhere.target_pages[0].pages = {1};
  there->execute(elsewhere.serialise());
  EXPECT_NE(there->state_digest(), here->state_digest());
  less.work[0] = {.slot = 0, .decode = 0, .prefill_end = 2};
  behind->execute(less.serialise());
  One further(options());
  less.work[0].prefill_end = 3;
  further->execute(less.serialise());
  EXPECT_NE(further->state_digest(), behind->state_digest());
}

// Costs are measured at positions that the model has, though its pages reach further.
TEST(Executor, TakesAnyLongestContext) {
  for (const int64_t max_positions : {2, 17, 33, 100}) {
    EngineOptions short_options = options();
    short_options.max_positions = max_positions;
    EXPECT_TRUE(One(short_options)->tables().target.known()) << max_positions;
  }
}

TEST(Executor, TheSchedulersLimitsAreItsOptionsAndPrices) {
  EngineOptions asked = options();
  asked.max_sequences = 5;
  asked.max_rows = 40;
  asked.prefill_chunk = 30;
  asked.prefill_beside = 20;
  asked.prefix_cache = false;
  One one(asked);
  const SchedulerLimits limits = scheduler_limits(*one);
  EXPECT_EQ(limits.num_slots, 5);
  EXPECT_EQ(limits.num_pages, one->num_pages());
  EXPECT_EQ(limits.num_draft_pages, one->num_draft_pages());
  EXPECT_EQ(limits.max_rows, 40);
  EXPECT_EQ(limits.prefill_chunk, 30);
  EXPECT_EQ(limits.prefill_beside, 20);
  EXPECT_FALSE(limits.prefix_cache);
  EXPECT_EQ(limits.costs.decode_ms(4), one->tables().target.decode_ms(4));
  // What docs/ARCHITECTURE.md promises whoever decodes beside a prompt.
  EXPECT_EQ(limits.prefill_slowdown, 1.4);
  EXPECT_EQ(limits.prefill_ms, 1);
}

// However few sequences there are.
TEST(Executor, MeasuresWhatFeedingADraftersCacheCosts) {
  for (const int64_t max_sequences : {1, 3, 16}) {
    EngineOptions few = options();
    few.max_sequences = max_sequences;
    const One one(few);
    const auto& steps = one->tables().draft[static_cast<int>(DrafterKind::model)].steps;
    EXPECT_EQ(steps.front().rows, 1);
    EXPECT_EQ(steps.back().rows, kPageTokens) << max_sequences;
  }
  EngineOptions short_one = options();
  short_one.max_sequences = 1;
  short_one.max_positions = 5;
  const One one(short_one);
  EXPECT_EQ(one->tables().draft[static_cast<int>(DrafterKind::model)].steps.back().rows, 5);
}

// Positions that are only fed, however many sequences may draw at once.
TEST(Executor, MeasuresWhatFeedingManyPositionsCosts) {
  const auto fed = [](int64_t max_sequences, int64_t prefill_chunk, int64_t max_positions) {
    EngineOptions options = outrider::options();
    options.max_sequences = max_sequences;
    options.prefill_chunk = prefill_chunk;
    options.max_positions = max_positions;
    const One one(options);
    const StepCosts& feed = one->tables().feed;
    EXPECT_EQ(feed.steps.size(), 2u);
    for (const StepCosts::Point& point : feed.steps) {
      EXPECT_TRUE(point.ms > 0 && std::isfinite(point.ms)) << point.rows;
    }
    return feed.steps.back().rows;
  };
  EXPECT_EQ(fed(1, 40, 100), 40);
  EXPECT_EQ(fed(64, 40, 100), 40);
  EXPECT_EQ(fed(3, 40, 30), 30);
  EXPECT_EQ(fed(3, 1, 30), 2);
  EngineOptions fixed = options();
  fixed.lookahead = *parse_lookahead("fixed:3");
  EXPECT_FALSE(One(fixed)->tables().feed.known());
}

// What computes flushes denormals; whoever calls it goes on to read and compare them.
TEST(Executor, LeavesItsCallersFloatEnvironment) {
  const unsigned before = _mm_getcsr() & ~_MM_EXCEPT_MASK;
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  Executor executor(options(), *backend, *self);
  EXPECT_EQ(_mm_getcsr() & ~_MM_EXCEPT_MASK, before);
  executor.execute(first_plan({5, 6, 7, 8}, DrafterKind::model).serialise());
  EXPECT_EQ(_mm_getcsr() & ~_MM_EXCEPT_MASK, before);
}

// A rank whose plan is not rank 0's, though it asks for the same rows: both throw before a token of
// the step is seen.
TEST(Executor, RanksThatDisagreeEndTheJob) {
  const auto run = [](uint64_t other_seed) {
    run_thread_ranks(2, [other_seed](Communicator& communicator) {
      const auto backend = make_cpu_backend();
      Executor executor(options(), *backend, communicator);
      StepPlan plan = first_plan({5, 6, 7, 8}, DrafterKind::model);
      if (communicator.rank() == 1) plan.admitted[0].seed = other_seed;
      executor.execute(plan.serialise());
    });
  };
  EXPECT_NO_THROW(run(0));
  EXPECT_THROW(run(1), DisagreementError);
}

// They then end in an orderly way, and none of them is taken for hung meanwhile.
TEST(Executor, AStepThatThrowsIsOver) {
  std::array<StepProgress, 2> progress;
  EXPECT_THROW(run_thread_ranks(2,
                                [&progress](Communicator& communicator) {
                                  const auto backend = make_cpu_backend();
                                  Executor executor(options(), *backend, communicator);
                                  executor.report_to(progress[communicator.rank()]);
                                  StepPlan plan = first_plan({5, 6, 7, 8}, DrafterKind::none);
                                  plan.admitted[0].seed = communicator.rank();
                                  executor.execute(plan.serialise());
                                }),
               DisagreementError);
  for (const StepProgress& told : progress) {
    EXPECT_EQ(told.report().step, 1u);
    EXPECT_EQ(told.report().state, RankState::idle);
  }
}

TEST(Executor, BetweenStepsThereIsWorkUnlessItRests) {
  StepProgress progress;
  One executor(options());
  bool waited = false;
  executor->rest([&] { waited = true; });  // nobody is told
  EXPECT_TRUE(waited);
  executor->report_to(progress);
  executor->execute(first_plan({5, 6, 7, 8}, DrafterKind::none).serialise());
  EXPECT_TRUE(progress.report().has_work());
  executor->rest([&] {
    EXPECT_FALSE(progress.report().has_work());
    executor->expect_work();
    EXPECT_TRUE(progress.report().has_work());
  });
  EXPECT_TRUE(progress.report().has_work());
}

// Up to the target's first sum nothing else shows that a starved step goes on. The communicator
// here tells of nothing.
TEST(Executor, TellsOfItsDraftsPassesAlikeOnEveryRank) {
  std::array<uint64_t, 2> told{};
  run_thread_ranks(2, [&told](Communicator& communicator) {
    StepProgress progress;
    const auto backend = make_cpu_backend();
    Executor executor(options(), *backend, communicator);
    executor.report_to(progress);
    executor.execute(first_plan({5, 6, 7, 8}, DrafterKind::model).serialise());
    told[communicator.rank()] = progress.report().collectives;
  });
  EXPECT_EQ(told[0], 6u);  // two passes of one layer: the embedding's sum, attention's, the FFN's
  EXPECT_EQ(told[1], told[0]);
}

// The state before a step, where the plans agree: rank 1 has seen another first step.
TEST(Executor, RanksThatHoldOtherStatesEndTheJob) {
  EXPECT_THROW(
      run_thread_ranks(2,
                       [](Communicator& communicator) {
                         const auto backend = make_cpu_backend();
                         const auto self = make_self_communicator();
                         // Each by itself, so that nothing is compared yet …
                         Executor alone(options(), *backend, *self);
                         const int32_t token = communicator.rank() == 0 ? 7 : 9;
                         alone.execute(first_plan({5, token, 6}, DrafterKind::none).serialise());
                         // … then the comparison that each step makes.
                         Verifier verifier(*backend, communicator, 2, communicator.rank(), 1, 1, 1);
                         Stream stream;
                         verifier.prepare({}, {}, {}, 0, alone.state_digest(), stream);
                         verifier.enqueue(stream);
                         verifier.finish(stream);
                       }),
      DisagreementError);
}

TEST(Executor, TheFingerprintNamesModelDraftAndRanks) {
  EngineOptions without_draft = options();
  without_draft.draft.reset();
  EngineOptions other_model = without_draft;
  other_model.model = test_checkpoint("tiny-draft");
  One a(options()), same(options()), b(without_draft), c(other_model);
  EXPECT_EQ(a->numerics_fingerprint(), same->numerics_fingerprint());
  EXPECT_NE(a->numerics_fingerprint(), b->numerics_fingerprint());
  EXPECT_NE(b->numerics_fingerprint(), c->numerics_fingerprint());
  run_thread_ranks(2, [&](Communicator& communicator) {
    const auto backend = make_cpu_backend();
    const Executor of_two(options(), *backend, communicator);
    EXPECT_NE(of_two.numerics_fingerprint(), a->numerics_fingerprint());
  });
}

// Prompts of other tokens, and answers that end elsewhere, are other answers.
TEST(Executor, TheFingerprintNamesTokenizerAndEnds) {
  const TemporaryDirectory directory;
  std::filesystem::copy(test_checkpoint("tiny"), directory.path(),
                        std::filesystem::copy_options::recursive);
  const EngineOptions options{.model = directory.path()};
  std::set<std::string> all{One(options)->numerics_fingerprint()};
  directory.write("generation_config.json", R"({"eos_token_id": [0, 30]})");
  all.insert(One(options)->numerics_fingerprint());
  std::string tokenizer = read_file(directory.path() / "tokenizer.json");
  directory.write("tokenizer.json", tokenizer + "\n");
  all.insert(One(options)->numerics_fingerprint());
  EXPECT_EQ(all.size(), 3u);
}

TEST(Executor, TheFingerprintNamesEveryDraftersFilesAndTheInstructionSet) {
  const auto fingerprint_of = [](const EngineOptions& options) {
    return One(options)->numerics_fingerprint();
  };
  EngineOptions plain{.model = test_checkpoint("tiny")};
  EngineOptions with_head = plain, with_counts = plain;
  with_head.draft_head = test_checkpoint("tiny-head");
  with_counts.draft_counts = counts_file(plain.model);
  std::set<std::string> all{fingerprint_of(plain), fingerprint_of(with_head),
                            fingerprint_of(with_counts)};
  EXPECT_EQ(all.size(), 3u);
  const char* const asked = std::getenv("OUTRIDER_CPU_ISA");
  const std::string before = asked == nullptr ? "" : asked;
  std::set<std::string> by_isa;
  size_t num_available = 0;
  for (const cpu::Isa isa : {cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avx512}) {
    if (!cpu::isa_available(isa)) continue;
    ++num_available;
    setenv("OUTRIDER_CPU_ISA", std::string(cpu::isa_name(isa)).c_str(), 1);
    by_isa.insert(fingerprint_of(plain));
  }
  unsetenv("OUTRIDER_CPU_ISA");
  if (asked != nullptr) setenv("OUTRIDER_CPU_ISA", before.c_str(), 1);
  EXPECT_EQ(by_isa.size(), num_available);
}

// More logits than tokens (a padded embedding) is ordinary; more tokens than logits is not.
TEST(Executor, RefusesATokenizerLargerThanTheModel) {
  const auto mixed = [](const char* model, const char* tokenizer) {
    const std::filesystem::path directory =
        testing::TempDir() + "/outrider_executor_test_" + std::to_string(getpid());
    std::filesystem::remove_all(directory);
    std::filesystem::copy(test_checkpoint(model), directory);
    std::filesystem::copy(test_checkpoint(tokenizer) / "tokenizer.json",
                          directory / "tokenizer.json",
                          std::filesystem::copy_options::overwrite_existing);
    EngineOptions options{.model = directory};
    std::string error;
    try {
      One executor(options);
      executor->execute(first_plan({5, 6}, DrafterKind::none).serialise());
    } catch (const Error& e) {
      error = e.what();
    }
    std::filesystem::remove_all(directory);
    return error;
  };
  EXPECT_EQ(mixed("tiny", "tiny-v64"), "");
  EXPECT_NE(mixed("tiny-v64", "tiny")
                .find("tokenizer.json: holds token 511, expected only tokens "
                      "below config.json's vocab_size, 64"),
            std::string::npos);
}

}  // namespace
}  // namespace outrider
