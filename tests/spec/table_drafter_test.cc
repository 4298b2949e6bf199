// The tables of counts, and what is drafted from them.
#include "spec/table_drafter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/float_environment.h"
#include "kernels/distribution.h"
#include "testing/count_file.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using Integers = std::vector<int32_t>;
using Tensors = std::map<std::string, Integers>;

constexpr int64_t kVocab = 5;
constexpr char kTokenizer[] = "0123456789abcdef";

// Behind 0: 1 twice, 3 once; behind 3: 3 seven times; behind others nothing.
const Tensors kCounts = {{"unigram_tokens", {1, 3, 4}},
                         {"unigram_counts", {2, 8, 1}},
                         {"bigram_rows", {0, 2, 2, 2, 3, 3}},
                         {"bigram_tokens", {1, 3, 3}},
                         {"bigram_counts", {2, 1, 7}}};

class TableDrafterTest : public ::testing::Test {
 protected:
  TableDrafterTest() { set_float_environment(); }

  CountTables load(const Tensors& tensors, const char* dtype = "I32") {
    directory_.write("counts.safetensors", count_file(tensors, kTokenizer, dtype));
    return CountTables::load(directory_.path() / "counts.safetensors", kVocab, kTokenizer);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Stream stream_ = backend_->make_stream();
};

TEST_F(TableDrafterTest, DraftsByTheTokenBefore) {
  const CountTables tables = load(kCounts);
  TableDrafter unigram(tables.unigram, *backend_, 3), bigram(tables.bigram, *backend_, 3);
  const float none = kUnscoredLogit, two = std::log(2.0f), seven = std::log(7.0f);
  const std::vector<float> of_all = {none, two, none, std::log(8.0f), 0};
  const std::vector<float> behind_0 = {none, two, none, 0, none};
  const std::vector<float> behind_3 = {none, none, none, seven, none};

  const Integers first = {4, 0}, second = {0, 3}, third = {0, 1};
  const Integers drafted = {3, 0};  // of the first sequence
  const Buffer on_device = backend_->allocate(sizeof(int32_t) * drafted.size());
  backend_->copy_from_host(on_device.view(DType::i32, {2}), drafted.data(), stream_);
  const Buffer memory = backend_->allocate(sizeof(float) * 3 * kVocab);
  const auto rows_of = [&](LogitDrafter& drafter, const std::vector<DraftContext>& contexts) {
    const auto count = static_cast<int64_t>(contexts.size());
    const TensorView logits = memory.view(DType::f32, {count, kVocab});
    drafter.prepare(contexts, logits, stream_);
    drafter.enqueue(stream_);
    std::vector<std::vector<float>> rows(count, std::vector<float>(kVocab));
    for (int64_t i = 0; i < count; ++i) {
      backend_->copy_to_host(rows[i].data(), logits.rows(i, i + 1), stream_);
    }
    backend_->synchronize(stream_);
    return rows;
  };
  using Rows = std::vector<std::vector<float>>;
  const std::vector<DraftContext> contexts = {
      {.slot = 0, .tokens = first}, {.slot = 1, .tokens = second}, {.slot = 2, .tokens = third}};
  EXPECT_EQ(rows_of(bigram, contexts), (Rows{behind_0, behind_3, of_all}));
  EXPECT_EQ(rows_of(unigram, contexts), (Rows{of_all, of_all, of_all}));
  for (int64_t round = 1; round <= 2; ++round) {
    const std::vector<DraftContext> later = {
        {.slot = 0,
         .tokens = first,
         .drafted = static_cast<const int32_t*>(on_device.data()),
         .num_drafted = round}};
    EXPECT_EQ(rows_of(bigram, later), (Rows{round == 1 ? behind_3 : behind_0}));
  }
}

TEST_F(TableDrafterTest, NamesWhatIsWrongWithAFile) {
  const auto expect = [&](const char* tensor, const Integers& values, const char* part) {
    Tensors tensors = kCounts;
    tensors[tensor] = values;
    expect_one_line_error({"counts.safetensors", tensor, part}, [&] { load(tensors); });
  };
  expect("unigram_tokens", {1, 3, 5}, "holds 5 at 2; expected ascending tokens below 5");
  expect("unigram_tokens", {3, 1, 4}, "holds 1 at 1");
  expect("unigram_counts", {1, 0, 1}, "holds 0 at 1; expected at least 1");
  expect("unigram_counts", {1, 1}, "has 2 entries; expected 3");
  expect("bigram_rows", {0, 2, 2, 2, 3}, "has 5 entries; expected 6");
  expect("bigram_rows", {0, 2, 1, 2, 3, 3}, "holds 2 and 1 at 1");
  expect("bigram_rows", {0, 2, 4, 3, 3, 3}, "up to 3");
  expect("bigram_rows", {1, 2, 2, 2, 3, 3}, "begins with 1 and ends with 3; expected 0 and 3");
  expect("bigram_rows", {0, 2, 2, 2, 2, 2}, "begins with 0 and ends with 2");
  expect("bigram_tokens", {3, 3, 3}, "holds 3 at 1");
  Tensors missing = kCounts;
  missing.erase("bigram_counts");
  expect_one_line_error({"bigram_counts", "is missing"}, [&] { load(missing); });
  expect_one_line_error({"F32", "I32"}, [&] { load(kCounts, "F32"); });
}

TEST_F(TableDrafterTest, CountsAreOfOneTokenizersTokens) {
  const auto path = directory_.path() / "counts.safetensors";
  const auto refuses = [&](const std::string& written, const std::string& found) {
    directory_.write("counts.safetensors", count_file(kCounts, written));
    expect_one_line_error(
        {path.string(), "metadata: tokenizer is " + found,
         std::string("expected the hash of the model's tokenizer.json, ") + kTokenizer},
        [&] { CountTables::load(path, kVocab, kTokenizer); });
  };
  refuses("fedcba9876543210", "\"fedcba9876543210\"");
  refuses("", "missing");
}

TEST_F(TableDrafterTest, CountsAreFoundByTheTokenizer) {
  const auto& path = directory_.path();
  const std::string mine = count_file(kCounts, kTokenizer);
  EXPECT_EQ(find_counts(path / "none", kTokenizer), std::nullopt);
  directory_.write("README.md", std::string("unigram_tokens ") + kTokenizer);
  directory_.write("another.safetensors", count_file(kCounts, "fedcba9876543210"));
  directory_.write("anybody's.safetensors", count_file(kCounts, ""));
  directory_.write("broken.safetensors", "unigram_tokens");
  std::filesystem::create_directory(path / "empty.safetensors");
  EXPECT_EQ(find_counts(path, kTokenizer), std::nullopt);
  directory_.write("mine.safetensors", mine);
  EXPECT_EQ(find_counts(path, kTokenizer), path / "mine.safetensors");
  EXPECT_EQ(find_counts(path, "fedcba9876543210"), path / "another.safetensors");

  directory_.write("too.safetensors", mine);
  expect_one_line_error({path.string(), "mine.safetensors", "too.safetensors",
                         "expected one file of counts", kTokenizer},
                        [&] { find_counts(path, kTokenizer); });
  directory_.write("too.safetensors", mine.substr(0, mine.size() - 1));
  expect_one_line_error({(path / "too.safetensors").string()},
                        [&] { find_counts(path, kTokenizer); });
}

}  // namespace
}  // namespace outrider
