// Detokenizer: whole UTF-8 at every step, and U+FFFD exactly where Python and Rust put it.
#include "model/detokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "model/byte_level.h"
#include "model/utf8.h"

namespace outrider {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer instance =
      Tokenizer::load(OUTRIDER_SOURCE_DIR "/tests/model/testdata/digits");
  return instance;
}

// The token of one byte.
int32_t byte_id(uint8_t byte) {
  return tokenizer().token_to_id(byte_level_alphabet()[byte]).value();
}

// What push() returns for each byte of `bytes`, then what finish() returns.
std::vector<std::string> pushed(std::string_view bytes) {
  Detokenizer detokenizer(tokenizer());
  std::vector<std::string> texts;
  for (char c : bytes) texts.push_back(detokenizer.push(byte_id(static_cast<uint8_t>(c))));
  texts.push_back(detokenizer.finish());
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Detokenizer, HoldsACharacterUntilItIsWhole) {
  EXPECT_EQ(pushed("a\xC3\xA9"), (Texts{"a", "", "é", ""}));
  EXPECT_EQ(pushed("\xE2\x82\xAC"), (Texts{"", "", "€", ""}));
  EXPECT_EQ(pushed("\xF0\x9F\x98\x80!"), (Texts{"", "", "", "😀", "!", ""}));
}

TEST(Detokenizer, FinishShowsWhatIsHeldAsOneReplacement) {
  EXPECT_EQ(pushed("\xF0\x9F\x98"), (Texts{"", "", "", "\uFFFD"}));
  EXPECT_EQ(pushed("a"), (Texts{"a", ""}));
  Detokenizer detokenizer(tokenizer());
  EXPECT_EQ(detokenizer.push(byte_id(0xC3)), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.push(byte_id('a')), "a");
}

// Each expectation is Python's bytes.decode(errors="replace").
TEST(Detokenizer, ReplacesMaximalIllFormedParts) {
  EXPECT_EQ(pushed("\x80"), (Texts{"\uFFFD", ""}));                // no lead byte
  EXPECT_EQ(pushed("\xC3("), (Texts{"", "\uFFFD(", ""}));          // cut short
  EXPECT_EQ(pushed("\xE2\x82("), (Texts{"", "", "\uFFFD(", ""}));  // two bytes, one replacement
  EXPECT_EQ(pushed("\xE0\x80"), (Texts{"", "\uFFFD\uFFFD", ""}));  // overlong
  EXPECT_EQ(pushed("\xED\xA0\x80"), (Texts{"", "\uFFFD\uFFFD", "\uFFFD", ""}));  // a surrogate
  EXPECT_EQ(pushed("\xE2\xE2\x82\xAC"), (Texts{"", "\uFFFD", "", "€", ""}));
  EXPECT_EQ(pushed("\xF0\x9F\xC3\xA9"), (Texts{"", "", "\uFFFD", "é", ""}));
}

TEST(Detokenizer, SpecialTokensAreNoText) {
  Detokenizer detokenizer(tokenizer());
  const int32_t end = tokenizer().token_to_id("<|im_end|>").value();
  EXPECT_EQ(detokenizer.push(end), "");
  EXPECT_EQ(detokenizer.push(byte_id(0xC3)), "");
  EXPECT_EQ(detokenizer.push(end), "");  // also not between the bytes of a character
  EXPECT_EQ(detokenizer.push(byte_id(0xA9)), "é");
}

TEST(Detokenizer, ACopyIsAStateToComeBackTo) {
  Detokenizer detokenizer(tokenizer());
  EXPECT_EQ(detokenizer.push(byte_id(0xC3)), "");
  Detokenizer saved = detokenizer;
  EXPECT_EQ(detokenizer.push(byte_id(0xA9)), "é");
  EXPECT_EQ(saved.push(byte_id(0xA8)), "è");
}

// Every sequence of up to four bytes drawn from the edges of UTF-8's ranges, whole and byte by
// byte.
TEST(Detokenizer, StepsAddUpToTheWhole) {
  const std::vector<uint8_t> edges = {0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                      0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0};
  std::vector<std::string> sequences = {""};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::string sequence = sequences[i];
    std::string whole;
    if (append_utf8(sequence, &whole) > 0) whole += "\uFFFD";
    std::string joined;
    for (const std::string& text : pushed(sequence)) {
      EXPECT_TRUE(is_valid_utf8(text));
      joined += text;
    }
    ASSERT_EQ(joined, whole) << testing::PrintToString(sequence);
    if (sequence.size() == 4) continue;
    for (uint8_t edge : edges) sequences.push_back(sequence + static_cast<char>(edge));
  }
}

}  // namespace
}  // namespace outrider
