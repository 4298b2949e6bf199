// LogitEditor: what the backend knows of a slot's tokens follows admissions, commits and the
// drafted tokens of a step; and nobody pays who asks for nothing.
#include "spec/logit_editor.h"

#include <gtest/gtest.h>

#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace outrider {
namespace {

constexpr int kVocab = 10;

// Counts what is enqueued.
class CountingBackend final : public CpuBackend {
 public:
  CountingBackend() : CpuBackend(cpu::select_isa()) {}
  void copy_from_host(TensorView to, const void* from, Stream& stream) override {
    ++enqueued;
    CpuBackend::copy_from_host(to, from, stream);
  }
  void copy_tokens(const TokenCopy* copies, int64_t n, Stream& stream) override {
    ++enqueued;
    CpuBackend::copy_tokens(copies, n, stream);
  }
  void edit_logits(const LogitEdit* edits, int64_t n, int64_t largest, Stream& stream) override {
    ++enqueued;
    CpuBackend::edit_logits(edits, n, largest, stream);
  }
  int enqueued = 0;
};

class LogitEditorTest : public testing::Test {
 protected:
  LogitEditorTest()
      : editor_(backend_, kVocab, 3, max_listed_tokens(1), 64, 64),
        stream_(backend_.make_stream()) {}

  // Zeros, edited behind the slot's tokens and the drafted ones.
  std::vector<float> edited(int64_t slot, const std::vector<int32_t>& drafted = {}) {
    std::vector<float> from(kVocab, 0.0f), to(kVocab, 0.0f);
    editor_.begin_step(stream_);
    editor_.add(slot, drafted.data(), static_cast<int64_t>(drafted.size()), from.data(), to.data(),
                0, kVocab);
    editor_.enqueue(editor_.upload(1, stream_), stream_);
    return to;
  }

  CountingBackend backend_;
  LogitEditor editor_;
  Stream stream_;
};

LogitRules frequency(float penalty) {
  LogitRules rules;
  rules.frequency_penalty = penalty;
  return rules;
}

TEST_F(LogitEditorTest, CountsTheOutput) {
  const std::vector<int32_t> tokens = {1, 2, 3, 3, 4};
  editor_.admit(1, frequency(-1), tokens, 2);  // the last three were emitted before
  EXPECT_TRUE(editor_.edits(1));
  EXPECT_EQ(edited(1), (std::vector<float>{0, 0, 0, 2, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(edited(1, {3, 9, 9}), (std::vector<float>{0, 0, 0, 3, 1, 0, 0, 0, 0, 2}));
  const std::vector<int32_t> emitted = {4, 4, 1};
  editor_.commit(1, emitted);  // the drafted ones left no trace
  EXPECT_EQ(edited(1), (std::vector<float>{0, 1, 0, 2, 3, 0, 0, 0, 0, 0}));
  EXPECT_EQ(edited(1), (std::vector<float>{0, 1, 0, 2, 3, 0, 0, 0, 0, 0}));
}

TEST_F(LogitEditorTest, ANewSequenceOfASlotBeginsAnew) {
  const std::vector<int32_t> first = {1, 2, 3}, second = {5, 6};
  editor_.admit(0, frequency(-1), first, 1);
  editor_.admit(2, frequency(-2), first, 1);
  edited(0);
  editor_.commit(0, second);
  editor_.admit(0, frequency(-1), second, 1);
  EXPECT_EQ(edited(0), (std::vector<float>{0, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(edited(2), (std::vector<float>{0, 0, 2, 2, 0, 0, 0, 0, 0, 0}));
  editor_.admit(0, {}, first, 1);
  EXPECT_FALSE(editor_.edits(0));
}

TEST_F(LogitEditorTest, MasksUntilTheOutputIsLongEnough) {
  LogitRules rules;
  rules.min_tokens = 3;
  rules.listed = {{2, 0.0f, 1}, {4, 1.5f, 0}};
  const std::vector<int32_t> prompt = {1, 2}, emitted = {5};
  editor_.admit(0, rules, prompt, 2);
  EXPECT_EQ(edited(0)[2], kUnscoredLogit);
  EXPECT_EQ(edited(0)[4], 1.5f);
  EXPECT_EQ(edited(0, {1, 1})[2], kUnscoredLogit);
  EXPECT_EQ(edited(0, {1, 1, 1})[2], 0.0f);
  editor_.commit(0, emitted);
  EXPECT_EQ(edited(0, {1})[2], kUnscoredLogit);
  EXPECT_EQ(edited(0, {1, 1})[2], 0.0f);
}

TEST_F(LogitEditorTest, NobodyPaysForAMinimumThatIsReached) {
  LogitRules rules;
  rules.min_tokens = 2;
  rules.listed = {{2, 0.0f, 1}};
  const std::vector<int32_t> prompt = {1, 2}, emitted = {5};
  editor_.admit(0, rules, prompt, 2);
  editor_.commit(0, emitted);
  EXPECT_EQ(edited(0)[2], kUnscoredLogit);
  editor_.commit(0, emitted);
  EXPECT_FALSE(editor_.edits(0));
  editor_.admit(0, rules, std::vector<int32_t>{1, 2, 5, 5}, 2);  // it was preempted
  EXPECT_FALSE(editor_.edits(0));
  rules.presence_penalty = 1;
  editor_.admit(0, rules, std::vector<int32_t>{1, 2, 5, 5}, 2);
  EXPECT_EQ(edited(0)[5], -1);
}

TEST_F(LogitEditorTest, NobodyPaysWhoAsksForNothing) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  LogitRules neutral;
  neutral.min_tokens = 5;  // and nothing ends the answer
  editor_.admit(0, neutral, tokens, 1);
  editor_.commit(0, tokens);
  editor_.begin_step(stream_);
  editor_.enqueue(editor_.upload(1, stream_), stream_);
  EXPECT_FALSE(editor_.edits(0));
  EXPECT_EQ(backend_.enqueued, 0);
}

TEST(LogitRules, RefuseProposalsThatAreMasked) {
  LogitRules rules;
  rules.min_tokens = 4;
  rules.listed = {{2, 0.0f, 1}, {3, -100.0f, 0}, {4, -99.0f, 0}, {5, 3.0f, 0}};
  const auto allowed = [&](std::vector<int32_t> proposed, int64_t num_output) {
    return rules.count_allowed(proposed, num_output);
  };
  EXPECT_EQ(allowed({}, 0), 0u);
  EXPECT_EQ(allowed({1, 4, 5, 9}, 0), 4u);
  EXPECT_EQ(allowed({1, 2, 5}, 0), 1u);
  EXPECT_EQ(allowed({1, 2, 5}, 2), 1u);
  EXPECT_EQ(allowed({1, 2, 5}, 3), 3u);  // 2 would be the fifth token
  EXPECT_EQ(allowed({3}, 9), 0u);
  EXPECT_EQ(allowed({2, 3, 2}, 9), 1u);
}

}  // namespace
}  // namespace outrider
