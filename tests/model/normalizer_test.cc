// Normalizer: the package's normal forms, in a time that no text makes grow with the square of its
// length.
#include "model/normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model/json_node.h"

namespace outrider {
namespace {

using nlohmann::json;

// Against the package's own, which takes hours for what LongRunsOfMarksAreOrdered takes no time
// for.
TEST(Normalizer, OrdersMarksAsThePackageDoes) {
  // Marks of several classes, of none, what decomposes, and what composes.
  const std::vector<std::string> parts = {
      "a",      "q",      "\u0301", "\u0316", "\u0323", "\u0327", "\u0345", "\u05b0", "\u093c",
      "\u3099", "\u1ea5", "\uac01", "\u11a8", "\ufb01", "\u0f71", "\u212b", "\u034f", "\ufdfa"};
  const std::map<std::string, int> forms = {
      {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
      {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
      {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
      {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  std::mt19937_64 random(3);
  for (const auto& [name, form] : forms) {
    const json type = {{"type", name}};
    const Normalizer normalizer(JsonNode(type, "test"));
    for (int i = 0; i < 2000; ++i) {
      std::string text;
      for (uint64_t length = random() % 12; length > 0; --length) {
        text += parts[random() % parts.size()];
      }
      utf8proc_uint8_t* expected = nullptr;
      const auto bytes =
          utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text),
                       &expected, static_cast<utf8proc_option_t>(form));
      ASSERT_GE(bytes, 0);
      EXPECT_EQ(normalizer(text),
                std::string(reinterpret_cast<const char*>(expected), static_cast<size_t>(bytes)))
          << name << " of " << text;
      std::free(expected);
    }
  }
}

TEST(Normalizer, LongRunsOfMarksAreOrdered) {
  constexpr int kMarks = 500'000;
  std::string above, below;
  for (int i = 0; i < kMarks; ++i) {
    above += "\u0301";
    below += "\u0316";
  }
  const json nfd = {{"type", "NFD"}};
  EXPECT_EQ(Normalizer(JsonNode(nfd, "test"))("a" + above + below), "a" + below + above);
}

}  // namespace
}  // namespace outrider
