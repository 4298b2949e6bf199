// Tokenizer against the `tokenizers` package: a small golden file (tools/tokenizer_golden.py), and
// a large corpus that is made when tests run (tools/tokenizer_corpus.py).
#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/mapped_file.h"
#include "model/detokenizer.h"
#include "model/json_node.h"
#include "model/regex.h"
#include "tests/testing/one_line_error.h"
#include "tests/testing/read_file.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const std::filesystem::path kTestdata = OUTRIDER_SOURCE_DIR "/tests/model/testdata";

json read(const std::filesystem::path& path) { return json::parse(read_file(path)); }

std::string decode(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

Tokenizer load(const json& file) {
  const TemporaryDirectory directory;
  directory.write("tokenizer.json", file.dump());
  return Tokenizer::load(directory.path());
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, EncodesAndDecodesAsThePackageDoes) {
  const Tokenizer tokenizer = Tokenizer::load(kTestdata / GetParam());
  const json cases = read(kTestdata / "tokenizer_golden.json")[GetParam()];
  ASSERT_GE(cases.size(), 40u);
  for (const json& c : cases) {
    const std::string text = c["text"];
    SCOPED_TRACE(c["text"].dump());
    const Ids ids = tokenizer.encode(text, /*add_special_tokens=*/false);
    EXPECT_EQ(ids, c["ids"].get<Ids>());
    EXPECT_EQ(tokenizer.encode(text), c["with_special_tokens"].get<Ids>());
    EXPECT_EQ(decode(tokenizer, ids), c["decoded"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Golden, testing::Values("digits", "split", "gpt2"),
                         [](const auto& info) { return info.param; });

TEST(Tokenizer, IsThePackageTokenForToken) {
  const char* set = std::getenv("OUTRIDER_TOKENIZER_CORPUS");
  const std::filesystem::path path =
      set != nullptr ? set : OUTRIDER_BINARY_DIR "/tokenizer_corpus.bin";
  ASSERT_TRUE(std::filesystem::exists(path))
      << path << " is missing; make it by: python tools/tokenizer_corpus.py --model DIR --output "
      << path;
  const MappedFile file(path);
  ByteReader reader(file.bytes().data(), file.bytes().size());
  ASSERT_EQ(reader.get_string(), "outrider tokenizer corpus 1");
  const Tokenizer tokenizer = Tokenizer::load(reader.get_string());

  const auto num_texts = reader.get<uint64_t>();
  EXPECT_GE(num_texts, 10000u);
  for (uint64_t i = 0; i < num_texts; ++i) {
    const std::string text = reader.get_string();
    const Ids ids = reader.get_vector<int32_t>();
    // Not EXPECT_EQ: a difference in a text of 100 kB would fill the screen.
    ASSERT_TRUE(tokenizer.encode(text) == ids) << "text " << i << ": " << text.substr(0, 200);
    ASSERT_TRUE(decode(tokenizer, ids) == reader.get_string()) << "text " << i;
  }
  const auto num_sequences = reader.get<uint64_t>();
  EXPECT_GE(num_sequences, 1000u);
  for (uint64_t i = 0; i < num_sequences; ++i) {
    const Ids ids = reader.get_vector<int32_t>();
    ASSERT_EQ(decode(tokenizer, ids), reader.get_string()) << "sequence " << i;
  }
  EXPECT_TRUE(reader.done());
  RecordProperty("texts", std::to_string(num_texts));
}

std::string utf8(uint32_t code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  const int behind = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;  // bytes
  constexpr uint8_t kLeads[] = {0, 0xC0, 0xE0, 0xF0};
  std::string text = {static_cast<char>(kLeads[behind] | code_point >> (6 * behind))};
  for (int i = behind - 1; i >= 0; --i) {
    text += static_cast<char>(0x80 | (code_point >> (6 * i) & 0x3F));
  }
  return text;
}

// ranges: [[first, last], ...] of code points.
std::vector<bool> members(const json& ranges) {
  std::vector<bool> result(0x110000);
  for (const json& range : ranges) {
    for (int c = range[0]; c <= range[1]; ++c) result[c] = true;
  }
  return result;
}

// Every code point, against what the package says (tools/unicode_categories.py).
TEST(Regex, ClassesCharactersAsThePackageDoes) {
  const json classes = read(kTestdata / "unicode_classes.json");
  for (const std::string pattern : {R"(\p{L})", R"(\p{N})", R"(\s)"}) {
    const std::vector<bool> expected = members(classes[pattern]);
    const Regex regex(pattern, "test");
    const Regex in_class("[" + pattern + "]", "test");
    Regex::Matcher matcher(regex), class_matcher(in_class);
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (0xD800 <= c && c < 0xE000) continue;
      const std::string text = utf8(c);
      ASSERT_EQ(matcher.find(text, 0).has_value(), expected[c])
          << pattern << " U+" << std::hex << c;
      ASSERT_EQ(class_matcher.find(text, 0).has_value(), expected[c]) << pattern << " " << c;
    }
  }
}

// Which characters decompose or change places with marks; what becomes of one is the same in every
// version of Unicode that knows it.
TEST(Normalizer, KnowsTheCharactersThatThePackageKnows) {
  const std::vector<bool> expected = members(read(kTestdata / "unicode_classes.json")["NFKD"]);
  const json nfkd = {{"type", "NFKD"}};
  const Normalizer normalizer(JsonNode(nfkd, "test"));
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (0xD800 <= c && c < 0xE000) continue;
    const std::string x = utf8(c);
    const std::string inert = x + "a\u0301" + x + "\u0316" + x;
    ASSERT_EQ(normalizer(inert) != inert, expected[c]) << "U+" << std::hex << c;
  }
}

TEST(Regex, RefusesWhatTheEnginesReadDifferently) {
  for (const char* pattern :
       {"^a",        "a$",          R"(\w)",      R"(\b)",    R"(\h)",      R"(\R)",
        R"(\v)",     R"(\x41)",     R"(\u12)",    R"(\u{1})", R"(\p{Han})", R"(\p{^L})",
        R"(\p{Cn})", R"(\pL)",      R"([\P{L}])", "[a[b]]",   "[a&&b]",     "[]a]",
        "[^]a]",     "[[:alpha:]]", "(?m:a)",     "(?i)a",    "(?<n>a)",    "(?#c)",
        "a{,3}",     "a{2}+",       "a{2}?",      "a{",       "a\\",        R"(\1)",
        R"(\p)",     R"(\p{)",      R"(\p{}})",   R"(\x{)",   R"(\x{}})",   R"(\x{g})"}) {
    SCOPED_TRACE(pattern);
    expect_one_line_error({"the key: the pattern has"}, [&] { Regex(pattern, "the key"); });
  }
  for (const char* pattern : {"(", "a)", "*a", "[a", "[z-a]", "a{3,2}", "(?<=a*)b"}) {
    SCOPED_TRACE(pattern);
    expect_one_line_error({"the key: expected a regular expression"},
                          [&] { Regex(pattern, "the key"); });
  }
}

TEST(Tokenizer, TellsTokensApart) {
  const Tokenizer tokenizer = Tokenizer::load(kTestdata / "split");
  const json file = read(kTestdata / "split" / "tokenizer.json");
  int32_t largest = 0;
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    EXPECT_EQ(tokenizer.token_to_id(token), id.get<int32_t>());
    largest = std::max(largest, id.get<int32_t>());
  }
  for (const json& added : file["added_tokens"]) {
    const int32_t id = added["id"];
    EXPECT_EQ(tokenizer.token_to_id(added["content"].get<std::string>()), id);
    EXPECT_EQ(tokenizer.is_special(id), added["special"].get<bool>());
    EXPECT_EQ(tokenizer.token_bytes(id).empty(), added["special"].get<bool>());
    if (tokenizer.is_special(id)) {
      EXPECT_EQ(tokenizer.token(id), added["content"].get<std::string>());
    }
    largest = std::max(largest, id);
  }
  EXPECT_EQ(tokenizer.vocab_size(), largest + 1);
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(*tokenizer.token_to_id("Ġa")), " a");
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.token_to_id("Ġa")));
}

TEST(Tokenizer, ReadsIllFormedTextAsReplacements) {
  const Tokenizer tokenizer = Tokenizer::load(kTestdata / "digits");
  EXPECT_EQ(tokenizer.encode("a\x80z\xE2\x82"), tokenizer.encode("a\uFFFDz\uFFFD"));
  EXPECT_EQ(tokenizer.encode(std::string_view()), Ids());
}

// With and without rules that cut the text, tokens that are found in it, and a prefix.
TEST(Tokenizer, ReadsNoFurtherThanIsOfUse) {
  for (const char* name : {"digits", "split", "gpt2"}) {
    const Tokenizer tokenizer = Tokenizer::load(kTestdata / name);
    const json cases = read(kTestdata / "tokenizer_golden.json")[name];
    std::string text;
    for (const json& c : cases) text += c["text"].get<std::string>();
    const Ids all = tokenizer.encode(text);
    const auto length = static_cast<int64_t>(all.size());
    EXPECT_EQ(tokenizer.encode(text, true, length), all);
    bool stops_early = false;
    for (int64_t most = 0; most < length; most += 1 + most / 8) {
      Ids some = tokenizer.encode(text, true, most);
      ASSERT_GT(static_cast<int64_t>(some.size()), most) << name;
      ASSERT_TRUE(std::equal(all.begin(), all.begin() + most, some.begin())) << name;
      stops_early |= static_cast<int64_t>(some.size()) < length / 2;
    }
    EXPECT_TRUE(stops_early) << name;
  }
}

TEST(Tokenizer, MayBeCalledFromManyThreads) {
  const Tokenizer tokenizer = Tokenizer::load(kTestdata / "split");
  const json cases = read(kTestdata / "tokenizer_golden.json")["split"];
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (const json& c : cases) {
          count += tokenizer.encode(c["text"].get<std::string>(), false) != c["ids"].get<Ids>();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(Tokenizer, RefusesFilesByName) {
  using Edit = std::function<void(json&)>;
  const std::vector<std::pair<std::vector<std::string>, Edit>> cases = {
      {{"model.type", "Unigram"}, [](json& j) { j["model"]["type"] = "Unigram"; }},
      {{"model is missing"}, [](json& j) { j.erase("model"); }},
      {{"model.vocab is missing"}, [](json& j) { j["model"].erase("vocab"); }},
      {{"model.vocab", "object"}, [](json& j) { j["model"]["vocab"] = json::array(); }},
      {{"model.vocab"}, [](json& j) { j["model"]["vocab"] = json::object(); }},
      {{"model.vocab.a", "integer"}, [](json& j) { j["model"]["vocab"]["a"] = "1"; }},
      {{"model.vocab.a", "-1"}, [](json& j) { j["model"]["vocab"]["a"] = -1; }},
      {{"model.vocab.a", "1.5"}, [](json& j) { j["model"]["vocab"]["a"] = 1.5; }},
      {{"model.vocab.a"}, [](json& j) { j["model"]["vocab"]["a"] = 1u << 31; }},
      {{"model.vocab.a", "1048576"}, [](json& j) { j["model"]["vocab"]["a"] = 1 << 20; }},
      {{"model.vocab.a"}, [](json& j) { j["model"]["vocab"]["a"] = UINT64_MAX; }},
      {{"\"a\"", "\"b\"", "both have id"},
       [](json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }},
      {{"model.merges is missing"}, [](json& j) { j["model"].erase("merges"); }},
      {{"model.merges[0]", "two tokens"}, [](json& j) { j["model"]["merges"][0] = "ab"; }},
      {{"model.merges[0]", "two tokens"}, [](json& j) { j["model"]["merges"][0] = "a b c"; }},
      {{"model.merges[0]", "two tokens"}, [](json& j) { j["model"]["merges"][0] = {"a"}; }},
      {{"model.merges[0][1]", "string"},
       [](json& j) {
         j["model"]["merges"][0] = {"a", 1};
       }},
      {{"model.merges[0]", "no \"zq\""}, [](json& j) { j["model"]["merges"][0] = "zq a"; }},
      {{"model.merges[0]", "no \"a~\""}, [](json& j) { j["model"]["merges"][0] = "a ~"; }},
      {{"model.dropout"}, [](json& j) { j["model"]["dropout"] = 0.1; }},
      {{"model.byte_fallback"}, [](json& j) { j["model"]["byte_fallback"] = true; }},
      {{"model.unk_token"}, [](json& j) { j["model"]["unk_token"] = "<none>"; }},
      {{"model.fuse_unk"}, [](json& j) { j["model"]["fuse_unk"] = 1; }},
      {{"model.continuing_subword_prefix"},
       [](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }},
      {{"model.end_of_word_suffix"}, [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {{"pre_tokenizer is null"}, [](json& j) { j["pre_tokenizer"] = nullptr; }},
      {{"pre_tokenizer is null"}, [](json& j) { j.erase("pre_tokenizer"); }},
      {{"pre_tokenizer.type", "Metaspace"},
       [](json& j) { j["pre_tokenizer"]["type"] = "Metaspace"; }},
      {{"pre_tokenizer", "ends in ByteLevel"},
       [](json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); }},
      {{"pretokenizers[2]", "no rule behind ByteLevel"},
       [](json& j) {
         auto& rules = j["pre_tokenizer"]["pretokenizers"];
         rules.push_back(rules[0]);
       }},
      {{"pretokenizers[0].pattern", "\\\\w"},
       [](json& j) {
         j["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Split"},
                                                   {"pattern", {{"Regex", "\\w\n"}}},
                                                   {"behavior", "Isolated"},
                                                   {"invert", false}};
       }},
      {{"pretokenizers[0].behavior", "MergedWithNext"},
       [](json& j) {
         j["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Split"},
                                                   {"pattern", {{"String", "a"}}},
                                                   {"behavior", "MergedWithNext"},
                                                   {"invert", false}};
       }},
      {{"individual_digits is missing"},
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0].erase("individual_digits"); }},
      {{"nested"},
       [](json& j) {
         for (int i = 0; i < 50; ++i) {
           j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {j["pre_tokenizer"]}}};
         }
       }},
      {{"normalizer.type", "Lowercase"},
       [](json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       }},
      {{"normalizer.normalizers[0].type", "Prepend"},
       [](json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}}}}};
       }},
      {{"decoder.type", "WordPiece"},
       [](json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       }},
      {{"decoder is null"}, [](json& j) { j["decoder"] = nullptr; }},
      {{"post_processor.type", "BertProcessing"},
       [](json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       }},
      {{"post_processor.special_tokens.<s> is missing"},
       [](json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}}},
                                {"special_tokens", json::object()}};
       }},
      {{"post_processor.single", "exactly once"},
       [](json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", json::array()},
                                {"special_tokens", json::object()}};
       }},
      {{"post_processor.special_tokens.s.ids[0]"},
       [](json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "s"}, {"type_id", 0}}}}}},
                                {"special_tokens", {{"s", {{"ids", {1000000}}}}}}};
       }},
      {{"truncation"},
       [](json& j) {
         j["truncation"] = {{"max_length", 512}};
       }},
      {{"padding"},
       [](json& j) {
         j["padding"] = {{"strategy", "BatchLongest"}};
       }},
      {{"added_tokens is missing"}, [](json& j) { j.erase("added_tokens"); }},
      {{"added_tokens[0].id", "expected 0"}, [](json& j) { j["added_tokens"][0]["id"] = 7; }},
      {{"added_tokens[2].content", "twice"},
       [](json& j) { j["added_tokens"][2] = j["added_tokens"][1]; }},
      {{"added_tokens[0].content"}, [](json& j) { j["added_tokens"][0]["content"] = ""; }},
      {{"added_tokens[0].special"}, [](json& j) { j["added_tokens"][0]["special"] = "yes"; }},
      {{"added_tokens[0].lstrip is missing"},
       [](json& j) { j["added_tokens"][0].erase("lstrip"); }},
      {{"added_tokens[3].content", "normalizer"},
       [](json& j) {
         j["normalizer"] = {{"type", "NFC"}};
         json token = j["added_tokens"][0];
         token["content"] = "e\u0301";
         token["id"] = j["model"]["vocab"].size();
         token["normalized"] = true;
         j["added_tokens"].push_back(token);
       }},
      // The id that follows the model's tokens is one of theirs, for they have a hole.
      {{"both have id"},
       [](json& j) {
         json token = j["added_tokens"][0];
         token["content"] = "<|new|>";
         const size_t size = j["model"]["vocab"].size();
         j["model"]["vocab"]["a"] = size;
         token["id"] = size;
         j["added_tokens"].push_back(token);
       }},
  };
  const json good = read(kTestdata / "digits" / "tokenizer.json");
  load(good);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    json bad = good;
    cases[i].second(bad);
    std::vector<std::string> parts = cases[i].first;
    parts.push_back("tokenizer.json");
    expect_one_line_error(parts, [&] { load(bad); });
  }
}

TEST(Tokenizer, RefusesFilesThatAreNotJson) {
  const TemporaryDirectory directory;
  expect_one_line_error({"tokenizer.json"}, [&] { Tokenizer::load(directory.path()); });
  for (const char* text :
       {"", "{", "[]", "3", "{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}}}", "\xFF"}) {
    directory.write("tokenizer.json", text);
    expect_one_line_error({"tokenizer.json"}, [&] { Tokenizer::load(directory.path()); });
  }
}

// No byte of a good file, changed, may end in anything but an Error or a tokenizer that works.
TEST(Tokenizer, SurvivesDamagedFiles) {
  const std::string good = read_file(kTestdata / "split" / "tokenizer.json");
  const TemporaryDirectory directory;
  std::mt19937 random(1);
  int loaded = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    // The settings stand at the ends, the vocabulary between them.
    const size_t at = random() % 2 == 0 ? random() % 2000 : random() % bad.size();
    bad[at] = static_cast<char>(random() % 2 == 0 ? random() % 256 : "{}[]\",:0aet"[random() % 11]);
    directory.write("tokenizer.json", bad);
    try {
      const Tokenizer tokenizer = Tokenizer::load(directory.path());
      tokenizer.encode("Hello, world! 123 <|end|> caf\u00e9 \u2192\n");
      ++loaded;
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find("tokenizer.json"), std::string_view::npos);
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace outrider
