// Regex: what a text may cost. What patterns mean is tested with the tokenizers that have them.
#include "model/regex.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace outrider {
namespace {

const std::string kLong(4 << 20, 'a');

TEST(Regex, RepeatedCharactersTakeNoMemory) {
  const Regex letters("\\p{L}+", "here");
  const auto match = Regex::Matcher(letters).find(kLong, 0);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end, kLong.size());
}

// Each turn of a group is remembered.
TEST(Regex, TooManyTurnsOfAGroupAreAnError) {
  const Regex groups("(?:(?:a|b)|c)+", "here");
  Regex::Matcher matcher(groups);
  EXPECT_THROW(matcher.find(kLong, 0), Error);
  const auto match = matcher.find("abcabc!", 0);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end, 6u);
}

}  // namespace
}  // namespace outrider
