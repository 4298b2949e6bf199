// Edited logits against the definitions of bias, penalties and min_tokens, written down once more
// and in double precision.
#include "kernels/cpu/processors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "kernels/coupled.h"
#include "kernels/verify_types.h"
#include "tests/kernels/kernel_test.h"

namespace outrider::cpu {
namespace {

constexpr int kVocab = 1000;

// A request's options and a sequence, as a client knows them.
struct Sequence {
  std::map<int32_t, float> bias;
  double repetition = 1, frequency = 0, presence = 0;
  int min_tokens = 0;
  std::vector<int32_t> ends;
  std::vector<int32_t> prompt, output, drafted;
};

// The definitions: of Transformers' RepetitionPenaltyLogitsProcessor over prompt and output, of the
// frequency and presence penalties of OpenAI's API over the output alone.
std::vector<double> reference(const Sequence& s, const std::vector<float>& logits) {
  std::vector<double> edited(logits.begin(), logits.end());
  std::vector<int32_t> output = s.output;
  output.insert(output.end(), s.drafted.begin(), s.drafted.end());
  for (const auto& [token, bias] : s.bias) edited[token] += bias;
  std::map<int32_t, int> counts;
  for (const int32_t token : output) ++counts[token];
  std::vector<int32_t> seen = s.prompt;
  seen.insert(seen.end(), output.begin(), output.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const int32_t token : seen) {
    double& x = edited[token];
    x = x < 0 ? x * s.repetition : x / s.repetition;
  }
  for (const auto& [token, count] : counts) edited[token] -= s.frequency * count + s.presence;
  if (static_cast<int>(output.size()) < s.min_tokens) {
    for (const int32_t token : s.ends) edited[token] = -INFINITY;
  }
  return edited;
}

// What LogitEditor keeps of a sequence (tests/spec/logit_editor_test.cc).
struct Kept {
  std::vector<TokenState> tokens = std::vector<TokenState>(kVocab, 0);
  std::vector<ListedToken> listed;
};

Kept kept(const Sequence& s) {
  Kept kept;
  for (const int32_t token : s.prompt) kept.tokens[token] |= kTokenInPrompt;
  for (const int32_t token : s.output) ++kept.tokens[token];
  std::map<int32_t, ListedToken> listed;
  for (const auto& [token, bias] : s.bias) listed[token] = {token, bias, 0};
  for (const int32_t token : s.ends) {
    listed.try_emplace(token, ListedToken{token, 0.0f, 0}).first->second.ends = 1;
  }
  for (const auto& [token, what] : listed) {
    kept.listed.push_back(what);
    kept.tokens[token] |= kTokenListed;
  }
  return kept;
}

LogitEdit edit_of(const Sequence& s, const Kept& kept, const float* from, float* to,
                  int32_t first_token, int32_t size) {
  return {
      .from = from,
      .to = to,
      .tokens = kept.tokens.data(),
      .listed = kept.listed.data(),
      .drafted = s.drafted.data(),
      .num_listed = static_cast<int32_t>(kept.listed.size()),
      .num_drafted = static_cast<int32_t>(s.drafted.size()),
      .first_token = first_token,
      .size = size,
      .repetition = static_cast<float>(s.repetition),
      .frequency = static_cast<float>(s.frequency),
      .presence = static_cast<float>(s.presence),
      .ends_masked = static_cast<int>(s.output.size() + s.drafted.size()) < s.min_tokens ? 1 : 0};
}

std::vector<float> edited(const Sequence& s, const std::vector<float>& logits,
                          Isa isa = select_isa()) {
  const Kept memory = kept(s);
  std::vector<float> to(logits.size());
  const LogitEdit edit = edit_of(s, memory, logits.data(), to.data(), 0, kVocab);
  edit_logits(&edit, 1, isa);
  return to;
}

class ProcessorsTest : public KernelTest {
 protected:
  // Everything at once, tokens that are drafted, listed and counted in every combination included.
  Sequence sequence() {
    const auto token = [&] { return static_cast<int32_t>(random_() % 40); };
    const auto real = [&](double low, double high) {
      return static_cast<double>(
          static_cast<float>(low + (high - low) * static_cast<double>(random_()) * 0x1p-32));
    };
    Sequence s;
    for (int i = 0; i < 10; ++i) s.bias[token()] = static_cast<float>(real(-100, 100));
    s.bias[kVocab - 1] = 5.0f;
    s.repetition = real(0.5, 2);
    s.frequency = real(-2, 2);
    s.presence = real(-2, 2);
    s.min_tokens = static_cast<int>(random_() % 40);
    for (int i = 0; i < 3; ++i) s.ends.push_back(token());
    for (int i = 0; i < 20; ++i) s.prompt.push_back(token());
    for (int i = 0; i < 15; ++i) s.output.push_back(token());
    for (int i = static_cast<int>(random_() % (kMaxDraftTokens + 1)); i > 0; --i) {
      s.drafted.push_back(token());
    }
    return s;
  }
};

TEST_F(ProcessorsTest, AreTheirDefinitions) {
  for (int round = 0; round < 200; ++round) {
    const Sequence s = sequence();
    const std::vector<float> logits = random_f32(kVocab, 5.0f);
    const std::vector<float> got = edited(s, logits);
    const std::vector<double> expected = reference(s, logits);
    for (int v = 0; v < kVocab; ++v) {
      if (std::isinf(expected[v])) {
        EXPECT_EQ(got[v], kUnscoredLogit) << v;
        continue;
      }
      // Five roundings, of values that |logit|, bias, and their products with at most 2 bound; a
      // count of at most 30 times 2 is subtracted.
      const double bound = 2 * (std::abs(logits[v]) + 100) + 64;
      EXPECT_NEAR(got[v], expected[v], 5 * kRoundF32 * bound) << v;
    }
  }
}

TEST_F(ProcessorsTest, GiveTheSameBitsOnEveryInstructionSetInPlaceOverShardsAndBesideOthers) {
  for (int round = 0; round < 50; ++round) {
    const Sequence a = sequence(), b = sequence();
    const Kept of_a = kept(a), of_b = kept(b);
    const std::vector<float> logits = random_f32(kVocab, 5.0f);
    const std::vector<float> expected = edited(a, logits, Isa::scalar);
    for (const Isa isa : available_isas()) {
      EXPECT_TRUE(same_bits(edited(a, logits, isa), expected)) << isa_name(isa);
      std::vector<float> in_place = logits, other = logits;
      std::vector<LogitEdit> edits = {edit_of(b, of_b, other.data(), other.data(), 0, kVocab),
                                      LogitEdit{}};
      for (const auto& [first, size] : {std::pair{0, 17}, {17, 0}, {17, 600}, {617, 383}}) {
        edits.push_back(
            edit_of(a, of_a, in_place.data() + first, in_place.data() + first, first, size));
      }
      edit_logits(edits.data(), static_cast<int64_t>(edits.size()), isa);
      EXPECT_TRUE(same_bits(in_place, expected)) << isa_name(isa);
      EXPECT_TRUE(same_bits(other, edited(b, logits))) << isa_name(isa);
    }
  }
}

// Where nothing is asked for, bits stay.
TEST_F(ProcessorsTest, ChangeNothingWhereTheyAreOff) {
  Sequence s = sequence();
  s.bias.clear();
  s.ends.clear();
  s.repetition = 1;
  s.frequency = s.presence = 0;
  const std::vector<float> logits = random_f32(kVocab, 5.0f);
  EXPECT_TRUE(same_bits(edited(s, logits), logits));
}

// However far a penalty goes: where two logits end at the same bound, each token wins now and then.
TEST_F(ProcessorsTest, LeaveCoupledNoiseItsSay) {
  Sequence s;
  s.prompt = {0, 1};
  s.repetition = 1e-38;
  std::vector<float> logits(kVocab, 1.0f);
  logits[0] = 5.0f;
  logits[1] = 3.0f;
  const std::vector<float> got = edited(s, logits);
  EXPECT_EQ(got[0], got[1]);
  int wins = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto time = [&](int token) {
      const double u = static_cast<double>(random_()) * 0x1p-32 + 0x1p-33;
      return coupled_time(u, static_cast<double>(got[token]) * per_temperature(1.0f));
    };
    const double first = time(0);
    wins += first < time(1) ? 1 : 0;
  }
  EXPECT_NEAR(wins, 500, 80);  // five standard deviations
}

// A broken row stays broken, a token that a trimmed head does not score stays without a chance, and
// nothing else becomes broken, whatever is asked for.
TEST_F(ProcessorsTest, NeitherHideNorMakeWhatIsNotFinite) {
  Sequence s;
  for (int32_t v = 0; v < kVocab; ++v) s.prompt.push_back(v);
  s.bias = {{0, 100.0f}, {1, -100.0f}, {2, 100.0f}, {3, 1.0f}};
  s.output = {0, 1, 2, 3, 4, 5};
  s.ends = {3, 6};
  s.min_tokens = 100;
  for (const double repetition : {1e-38, 1e-30, 1.0, 1e30, 3e38}) {
    s.repetition = repetition;
    std::vector<float> logits(kVocab, 1.0f);
    for (size_t v = 8; v < kVocab; v += 2) logits[v] = -3e4f;
    logits[2] = logits[5] = logits[6] = kUnscoredLogit;
    std::vector<float> got = edited(s, logits);
    for (const float x : got) EXPECT_TRUE(std::isfinite(x)) << repetition;
    for (const int v : {2, 3, 5, 6}) EXPECT_EQ(got[v], kUnscoredLogit) << repetition;
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const int where : {0, 3, 4, 7}) {
        std::vector<float> broken = logits;
        broken[where] = bad;
        EXPECT_TRUE(same_number(edited(s, broken)[where], bad)) << where;
      }
    }
  }
}

}  // namespace
}  // namespace outrider::cpu
