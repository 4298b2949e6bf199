// Edited logits on the device are the CPU's, bit for bit: rows of several sequences beside each
// other, in place and apart, over shards and chunks, with tokens that are drafted and listed.
#include "kernels/cuda/processors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device_array.h"
#include "kernels/cpu/processors.h"
#include "kernels/verify_types.h"

namespace outrider::cuda {
namespace {

struct Case {
  int32_t vocab, first_token, size;
};

class ProcessorsParity : public testing::TestWithParam<Case> {};

TEST_P(ProcessorsParity, EditedRowsAreTheCpus) {
  constexpr int kRows = 6, kListed = 300, kListsNothing = 1;
  const int32_t vocab = GetParam().vocab, first = GetParam().first_token, size = GetParam().size;
  std::mt19937 random(vocab);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  const auto token = [&] { return static_cast<int32_t>(random() % vocab); };
  std::vector<float> logits(static_cast<size_t>(kRows) * size);
  for (float& x : logits) x = random() % 7 == 0 ? kUnscoredLogit : normal(random);
  logits[0] = std::numeric_limits<float>::quiet_NaN();
  logits.back() = std::numeric_limits<float>::infinity();
  std::vector<TokenState> tokens(static_cast<size_t>(kRows) * vocab, 0);
  for (TokenState& state : tokens) {
    if (random() % 3 == 0) state = random() % 5;
    if (random() % 3 == 0) state |= kTokenInPrompt;
  }
  std::vector<ListedToken> listed;
  std::vector<int32_t> drafted;
  const int32_t num_listed = std::min(kListed, vocab);
  for (int r = 0; r < kRows; ++r) {
    for (int32_t i = 0; i < num_listed; ++i) {
      const int32_t lists = i * 11 % vocab;  // no vocabulary here is a multiple of 11
      listed.push_back({lists, normal(random), i % 2});
      if (r != kListsNothing) tokens[r * vocab + lists] |= kTokenListed;
    }
    for (int i = 0; i < kMaxDraftTokens; ++i) drafted.push_back(i % 3 == 0 ? 11 % vocab : token());
  }

  const auto edits_on = [&](const float* from, float* to, const TokenState* states,
                            const ListedToken* list, const int32_t* before) {
    std::vector<LogitEdit> edits;
    for (int r = 0; r < kRows; ++r) {
      edits.push_back({.from = from + r * size,
                       .to = to + r * size,
                       .tokens = states + r * vocab,
                       .listed = list + r * num_listed,
                       .drafted = before + r * kMaxDraftTokens,
                       .num_listed = r == kListsNothing ? 0 : num_listed,
                       .num_drafted = r == 5 ? kMaxDraftTokens : r,
                       .first_token = first,
                       .size = size,
                       .repetition = 0.7f + 0.2f * static_cast<float>(r),
                       .frequency = 0.3f * static_cast<float>(r),
                       .presence = 1.0f - 0.5f * static_cast<float>(r),
                       .ends_masked = r % 2});
    }
    edits.insert(edits.begin() + 3, LogitEdit{});  // a row that nobody has
    return edits;
  };
  std::vector<float> expected(logits.size());
  const auto on_host =
      edits_on(logits.data(), expected.data(), tokens.data(), listed.data(), drafted.data());
  cpu::edit_logits(on_host.data(), static_cast<int64_t>(on_host.size()), cpu::select_isa());

  const DeviceArray<float> from(logits), to(logits.size());
  const DeviceArray<TokenState> states(tokens);
  const DeviceArray<ListedToken> list(listed);
  const DeviceArray<int32_t> before(drafted);
  for (float* const target : {to.data(), from.data()}) {  // apart, then in place
    const DeviceArray<LogitEdit> edits(
        edits_on(from.data(), target, states.data(), list.data(), before.data()));
    edit_logits(edits.data(), kRows + 1, size, nullptr);
    const auto got = target == to.data() ? to.values() : from.values();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(std::memcmp(&got[i], &expected[i], sizeof(float)) == 0 ||
                  (got[i] != got[i] && expected[i] != expected[i]))
          << i << ": " << got[i] << ", expected " << expected[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ProcessorsParity,
                         testing::Values(Case{3, 0, 3}, Case{50, 20, 30}, Case{512, 0, 512},
                                         Case{700, 100, 600}, Case{4096, 0, 4096},
                                         Case{9001, 4500, 4501}, Case{9001, 0, 9001}));

TEST(ProcessorsParityNothing, ToEditIsNoLaunch) {
  edit_logits(nullptr, 0, 100, nullptr);
  edit_logits(nullptr, 3, 0, nullptr);
}

}  // namespace
}  // namespace outrider::cuda
