#include "bench/tokenizer_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "model/tokenizer.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

constexpr size_t kMegabyte = 1000000;

struct Input {
  std::string name;
  std::vector<std::string> texts;
  std::vector<Ids> expected;  // of each text; empty where nobody has said
};

// `unit` over and over, cut to whole units of at most `bytes`.
std::string repeated(std::string_view unit, size_t bytes = kMegabyte) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

// What `draw` returns, until there are `bytes`.
std::string drawn(const std::function<std::string(std::mt19937&)>& draw, size_t bytes = kMegabyte) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < bytes) text += draw(random);
  return text;
}

std::string letter_of(std::string_view alphabet, std::mt19937& random) {
  return {alphabet[random() % alphabet.size()]};
}

// A character of three bytes in UTF-8.
std::string utf8_of(uint32_t code_point) {
  return {static_cast<char>(0xE0 | code_point >> 12),
          static_cast<char>(0x80 | (code_point >> 6 & 0x3F)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

// Text that nobody writes and anybody can send: most of it one word, so that merges are many.
std::vector<Input> ugly_inputs() {
  const auto letter = [](std::mt19937& random) {
    return letter_of("abcdefghijklmnopqrstuvwxyz", random);
  };
  const auto word = [&](std::mt19937& random) {
    std::string text;
    for (size_t left = 1 + random() % 12; left > 0; --left) text += letter(random);
    return text + " ";
  };
  const auto ideograph = [](std::mt19937& random) { return utf8_of(0x4E00 + random() % 0x5000); };
  const auto byte = [](std::mt19937& random) { return std::string{static_cast<char>(random())}; };
  const auto base64 = [](std::mt19937& random) {
    return letter_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", random);
  };
  std::vector<Input> inputs;
  const auto add = [&](const char* name, std::string text) {
    inputs.push_back({name, {std::move(text)}, {}});
  };
  add("random letters, one word of 100 kB", drawn(letter, kMegabyte / 10));
  add("random letters, one word", drawn(letter));
  add("random words", drawn(word));
  add("a, one word", repeated("a"));
  add("ab, one word", repeated("ab"));
  add("the, one word", repeated("the"));
  add("internationalization, one word", repeated("internationalization"));
  add("é, one word", repeated("é"));
  add("random ideographs, one word", drawn(ideograph));
  add("base64", drawn(base64));
  add("digits", repeated("7"));
  add("spaces", repeated(" "));
  add("newlines", repeated("\n"));
  add("=", repeated("="));
  add("emoji", repeated("👨‍👩‍👧‍👦"));
  add("combining marks", repeated("\u0301"));
  add("control characters", repeated(std::string_view("\0", 1)));
  add("random bytes", drawn(byte));
  add("special tokens", repeated("<|im_start|>"));
  add("special tokens that break off", repeated("<|im_start|"));
  return inputs;
}

Input read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || text.empty()) throw Error(path.string() + ": cannot read; expected a text");
  return {path.filename().string(), {std::move(text)}, {}};
}

Input read_corpus(const std::filesystem::path& path) {
  const MappedFile file(path);
  ByteReader reader(file.bytes().data(), file.bytes().size());
  if (reader.get_string() != "outrider tokenizer corpus 1") {
    throw Error(path.string() + ": expected what tools/tokenizer_corpus.py writes");
  }
  reader.get_string();  // the directory it was made for
  Input corpus;
  for (auto left = reader.get<uint64_t>(); left > 0; --left) {
    corpus.texts.push_back(reader.get_string());
    corpus.expected.push_back(reader.get_vector<int32_t>());
    reader.get_string();  // the text decoded again
  }
  corpus.name = "corpus of " + std::to_string(corpus.texts.size()) + " texts";
  return corpus;
}

// Prints the input's row; returns MB/s.
double measure(const Tokenizer& tokenizer, const Input& input, int repeats) {
  size_t bytes = 0, tokens = 0;
  for (const std::string& text : input.texts) bytes += text.size();
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<Ids> ids;
    ids.reserve(input.texts.size());
    const Clock::time_point start = Clock::now();
    for (const std::string& text : input.texts) ids.push_back(tokenizer.encode(text));
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (!input.expected.empty() && ids != input.expected) {
      throw Error(input.name + ": the ids are not those that it was made with");
    }
    tokens = 0;
    for (const Ids& some : ids) tokens += some.size();
  }
  std::sort(seconds.begin(), seconds.end());
  const double rate = static_cast<double>(bytes) / 1e6 / seconds[seconds.size() / 2];
  std::printf("| %s | %zu | %zu | %.1f |\n", input.name.c_str(), bytes, tokens, rate);
  return rate;
}

}  // namespace

int run_tokenizer_bench(const TokenizerBenchOptions& options) {
  CHECK(options.repeats > 0);
  std::vector<Input> inputs;
  for (const std::filesystem::path& path : options.texts) inputs.push_back(read_text(path));
  if (options.corpus) inputs.push_back(read_corpus(*options.corpus));
  for (Input& input : ugly_inputs()) inputs.push_back(std::move(input));
  const Tokenizer tokenizer = Tokenizer::load(options.model);

  std::printf("| input | bytes | tokens | MB/s |\n| --- | ---: | ---: | ---: |\n");
  int slow = 0;
  for (const Input& input : inputs) {
    slow += measure(tokenizer, input, options.repeats) < options.at_least;
  }
  if (slow == 0) return 0;
  std::fprintf(stderr, "outrider: %d of %zu inputs were encoded at less than %.1f MB/s\n", slow,
               inputs.size(), options.at_least);
  return 1;
}

}  // namespace outrider
