#include "engine/output_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "testing/checkpoints.h"

namespace outrider {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer instance = Tokenizer::load(test_checkpoint("tiny"));
  return instance;
}

struct Result {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<std::string> pieces;
  std::vector<int64_t> ends;  // of each token, in the whole text
  FinishReason reason = FinishReason::length;
};

// Feeds ids in blocks of `block` tokens, as steps that emit several do; what lies behind the end is
// dropped.
Result feed(const std::vector<int32_t>& ids, const SamplingParams& sampling, size_t block,
            const std::vector<int32_t>& eos = {}, int64_t max_tokens = 1000) {
  OutputStream stream(tokenizer(), sampling.stop);
  TokenEnd end(sampling, eos, max_tokens);
  Result result;
  for (size_t i = 0; i < ids.size() && !stream.finished(); i += block) {
    for (size_t j = i; j < std::min(ids.size(), i + block); ++j) {
      if (!stream.push(ids[j], TokenOrigin::plain, end.push(ids[j]))) break;
    }
    const Chunk chunk = stream.take();
    for (const int32_t end : chunk.text_ends) {
      result.ends.push_back(static_cast<int64_t>(result.text.size()) + end);
    }
    result.text += chunk.text;
    result.pieces.push_back(chunk.text);
    result.ids.insert(result.ids.end(), chunk.token_ids.begin(), chunk.token_ids.end());
  }
  result.reason = stream.finish_reason();
  return result;
}

std::vector<int32_t> encode(const std::string& text) { return tokenizer().encode(text, false); }

SamplingParams with_stop(std::vector<std::string> stop) {
  SamplingParams sampling;
  sampling.stop = std::move(stop);
  return sampling;
}

TEST(OutputStream, StopStringEndsTheTextBeforeIt) {
  const auto ids = encode("one two three four");
  for (size_t block : {1u, 3u, 100u}) {
    const Result result = feed(ids, with_stop({"three"}), block);
    EXPECT_EQ(result.text, "one two ");
    EXPECT_EQ(result.reason, FinishReason::stop);
  }
}

TEST(OutputStream, HoldsBackWhatMayBecomeAStopString) {
  const Result result = feed(encode("abcabd!"), with_stop({"abd"}), 1);
  EXPECT_EQ(result.text, "abc");
  for (const std::string& piece : result.pieces) EXPECT_EQ(piece.find("abd"), std::string::npos);
  // Never completed: all of it comes out in the end.
  EXPECT_EQ(
      feed(encode("xyab"), with_stop({"abd"}), 1, {}, static_cast<int64_t>(encode("xyab").size()))
          .text,
      "xyab");
}

TEST(OutputStream, TheFirstMatchToBecomeCompleteWins) {
  // "bc" is complete a token before "abcd" would be, though "abcd" starts earlier; searching a
  // whole block would cut at "abcd".
  std::vector<int32_t> ids;
  for (const char* letter : {"x", "a", "b", "c", "d", "y"}) ids.push_back(encode(letter)[0]);
  for (size_t block : {1u, 2u, 100u}) {
    EXPECT_EQ(feed(ids, with_stop({"abcd", "bc"}), block).text, "xa");
    EXPECT_EQ(feed(ids, with_stop({"abc", "bc"}), block).text,
              "x");  // both complete: the earlier start
  }
}

TEST(OutputStream, EosIsSentButNotItsText) {
  auto ids = encode("hello");
  const int32_t eos = ids[2];
  const Result result = feed(ids, {}, 100, {eos});
  EXPECT_EQ(result.ids, std::vector<int32_t>(ids.begin(), ids.begin() + 3));
  EXPECT_EQ(result.reason, FinishReason::stop);
  SamplingParams ignoring;
  ignoring.ignore_eos = true;
  EXPECT_EQ(feed(ids, ignoring, 100, {eos}, static_cast<int64_t>(ids.size())).ids, ids);
}

TEST(OutputStream, NeverSplitsACharacter) {
  const std::string text = "naïve 日本語 🙂!";
  const auto ids = encode(text);
  const Result result = feed(ids, {}, 1, {}, static_cast<int64_t>(ids.size()));
  EXPECT_EQ(result.text, text);
  EXPECT_EQ(result.ids, ids);
  for (const std::string& piece : result.pieces) {
    if (piece.empty()) continue;
    EXPECT_NE(static_cast<uint8_t>(piece[0]) & 0xC0, 0x80) << piece;
  }
}

TEST(OutputStream, AnUnfinishedCharacterBecomesAReplacement) {
  auto ids = encode("é");
  ASSERT_GE(ids.size(), 2u) << "the tiny tokenizer writes é in two tokens";
  EXPECT_EQ(feed({ids[0]}, {}, 1, {}, 1).text, "\xEF\xBF\xBD");
}

TEST(OutputStream, WhereItIsCutNothingIsHeldBack) {
  const auto ids = encode("one tw");
  OutputStream stream(tokenizer(), {"two"});
  for (const int32_t id : ids) ASSERT_TRUE(stream.push(id, TokenOrigin::plain, std::nullopt));
  Chunk chunk = stream.take();
  EXPECT_EQ(chunk.text, "one ");
  stream.cut();
  const Chunk rest = stream.take();
  EXPECT_EQ(rest.text, "tw");
  EXPECT_EQ(chunk.token_ids.size() + rest.token_ids.size(), ids.size());
  EXPECT_TRUE(stream.finished());
  EXPECT_EQ(stream.finish_reason(), FinishReason::cancelled);
}

// Against a plain implementation that looks at all the text after each token: random texts over two
// letters, random stop strings, every block size gives the same text, tokens and reason.
TEST(OutputStream, DoesNotDependOnBlocks) {
  std::mt19937 random(1);
  const int32_t a = encode("a")[0], b = encode("b")[0];
  int stopped = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    std::string letters;
    for (int i = 0; i < 24; ++i) {
      const bool is_a = random() % 2 == 0;
      ids.push_back(is_a ? a : b);
      letters += is_a ? 'a' : 'b';
    }
    std::vector<std::string> stop(1 + random() % 3);
    for (std::string& s : stop) {
      for (size_t n = 2 + random() % 6; n > 0; --n) s += random() % 2 == 0 ? 'a' : 'b';
    }
    size_t cut = letters.size(), used = letters.size();
    for (size_t n = 1; n <= letters.size() && cut == letters.size(); ++n) {
      for (const std::string& s : stop) {
        const size_t at = letters.substr(0, n).find(s);
        if (at != std::string::npos && at < cut) cut = at, used = n;
      }
    }
    stopped += cut < letters.size();
    for (size_t block : {1u, 2u, 5u, 24u}) {
      const Result result = feed(ids, with_stop(stop), block, {}, 24);
      ASSERT_EQ(result.text, letters.substr(0, cut));
      ASSERT_EQ(result.ids.size(), used);
      for (size_t n = 0; n < used; ++n) {
        ASSERT_EQ(result.ends[n], static_cast<int64_t>(std::min(n + 1, cut)));
      }
    }
  }
  EXPECT_GT(stopped, 500);
}

}  // namespace
}  // namespace outrider
