// Against Transformers: the golden files of testdata/, which tools/golden_logits.py makes and whose
// first lines say with which versions.
//
// A file records two differences between runs of Transformers, as maximum and root mean square,
// over all its numbers and, for random checkpoints, those of sixty more prompts:
// `rounded_minus_fp32`, what bf16 activations cost, and `rounded_minus_float64`, what another order
// of summation costs where it flips a rounding to bf16. Our run is one more of the kind of
// `rounded`: it may be twice as far from `rounded` as float64's is (each as far from float64's as
// the other) and twice as far from `fp32` as `rounded` is. The mean square is checked too, but not
// against `rounded` where a test compares few rows: a flip moves a whole one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/model/model_runner.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/read_file.h"

namespace outrider {
namespace {

using nlohmann::json;

json read_json(const std::filesystem::path& path) { return json::parse(read_file(path)); }

json read_golden(const std::string& name) {
  return read_json(std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/model/testdata" / name);
}

struct Tolerance {
  double max;
  double rms;
};

Tolerance twice(const json& difference) {
  return {2 * difference.at("max").get<double>(), 2 * difference.at("rms").get<double>()};
}
Tolerance against_rounded(const json& golden) { return twice(golden.at("rounded_minus_float64")); }
Tolerance against_fp32(const json& golden) { return twice(golden.at("rounded_minus_fp32")); }

// Collects |found - expected| over a file.
class Differences {
 public:
  void add(double found, double expected) {
    const double difference = std::abs(found - expected);
    // A NaN stays: it is below no tolerance.
    max_ = difference <= max_ ? max_ : difference;
    sum_of_squares_ += difference * difference;
    ++count_;
  }
  double rms() const { return std::sqrt(sum_of_squares_ / static_cast<double>(count_)); }

  void expect_max_within(const Tolerance& tolerance, const char* name) const {
    std::printf("  %-8s max %.4f (at most %.4f), rms %.5f, of %ld numbers\n", name, max_,
                tolerance.max, rms(), count_);
    EXPECT_GT(count_, 0);
    EXPECT_LE(max_, tolerance.max) << name;
  }

 private:
  double max_ = 0, sum_of_squares_ = 0;
  long count_ = 0;
};

int32_t argmax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

double log_probability(const Logits& row, int32_t token) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float logit : row) sum += std::exp(logit - max);
  return row[token] - max - std::log(sum);
}

// The largest value less the second largest.
double top_gap(std::vector<float> values) {
  std::nth_element(values.begin(), values.begin() + 1, values.end(), std::greater<>());
  return values[0] - values[1];
}

class TinyGolden : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(TinyGolden, LogitsAreTransformers) {
  const auto& [name, ranks] = GetParam();
  std::string file = "golden_" + name + ".json";
  std::replace(file.begin(), file.end(), '-', '_');
  const json golden = read_golden(file);
  Differences rounded, fp32;
  for (const json& test_case : golden.at("cases")) {
    const auto ids = test_case.at("prompt_ids").get<std::vector<int32_t>>();
    const auto logits = run_ranks(test_checkpoint(name), ranks,
                                  [&](ModelRunner& runner) { return runner.feed(0, ids, 16); });
    ASSERT_EQ(logits.size(), ids.size());
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const double found = log_probability(logits[i], ids[i + 1]);
      rounded.add(found, test_case.at("logprobs_rounded").at(i).get<double>());
      fp32.add(found, test_case.at("logprobs_fp32").at(i).get<double>());
    }
    const auto last_rounded = test_case.at("last_logits_rounded").get<std::vector<float>>();
    const auto last_fp32 = test_case.at("last_logits_fp32").get<std::vector<float>>();
    ASSERT_EQ(logits.back().size(), last_rounded.size());
    for (size_t token = 0; token < last_rounded.size(); ++token) {
      rounded.add(logits.back()[token], last_rounded[token]);
      fp32.add(logits.back()[token], last_fp32[token]);
    }
    if (argmax(logits.back()) != argmax(last_rounded)) {
      // Both of the two best may have moved.
      EXPECT_LE(top_gap(last_rounded), 2 * against_rounded(golden).max);
    }
  }
  std::printf("%s over %d ranks\n", name.c_str(), ranks);
  rounded.expect_max_within(against_rounded(golden), "rounded");
  fp32.expect_max_within(against_fp32(golden), "fp32");
  EXPECT_LE(fp32.rms(), against_fp32(golden).rms);
}

INSTANTIATE_TEST_SUITE_P(Models, TinyGolden,
                         ::testing::Combine(::testing::Values("tiny", "tiny-odd", "tiny-llama3",
                                                              "tiny-gpt2", "tiny-gpt2-odd"),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::erase(name, '-');
                           return name + "_" + std::to_string(std::get<1>(info.param)) + "_ranks";
                         });

// The real model on chat prompts and the answers that Transformers gives to them greedily, in fp32.
class RealGolden : public ::testing::TestWithParam<int> {};

TEST_P(RealGolden, LogProbabilitiesAndChoicesAreTransformers) {
  const json golden = read_golden("golden_smollm2.json");
  const json manifest =
      read_json(std::filesystem::path(OUTRIDER_SOURCE_DIR) / "models/SmolLM2-135M-Instruct.json");
  ASSERT_EQ(golden.at("weights_sha256"), manifest.at("files").at("model.safetensors").at("sha256"))
      << "the golden file was made from another model";

  // Three ranks take every sixth case, to save time.
  const bool whole = GetParam() < 3;
  std::vector<json> cases;
  for (size_t i = 0; i < golden.at("cases").size(); i += whole ? 1 : 6) {
    cases.push_back(golden.at("cases").at(i));
  }

  const auto logits = run_ranks(real_model(), GetParam(), [&](ModelRunner& runner) {
    std::vector<Logits> all;
    for (const json& test_case : cases) {
      auto ids = test_case.at("prompt_ids").get<std::vector<int32_t>>();
      for (const json& id : test_case.at("greedy_ids")) ids.push_back(id.get<int32_t>());
      for (Logits& row : runner.feed(0, ids, 128)) all.push_back(std::move(row));
    }
    return all;
  });

  const Tolerance tolerance = against_fp32(golden);
  Differences rounded, fp32;
  int choices = 0, near_ties = 0;
  const Logits* row = logits.data();
  for (const json& test_case : cases) {
    const auto prompt_ids = test_case.at("prompt_ids").get<std::vector<int32_t>>();
    const auto greedy_ids = test_case.at("greedy_ids").get<std::vector<int32_t>>();
    auto ids = prompt_ids;
    ids.insert(ids.end(), greedy_ids.begin(), greedy_ids.end());
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const double found = log_probability(row[i], ids[i + 1]);
      rounded.add(found, test_case.at("logprobs_rounded").at(i).get<double>());
      fp32.add(found, test_case.at("logprobs_fp32").at(i).get<double>());
    }
    for (size_t i = 0; i < greedy_ids.size(); ++i) {
      ++choices;
      if (argmax(row[prompt_ids.size() - 1 + i]) == greedy_ids[i]) continue;
      ++near_ties;
      const double margin = test_case.at("margins_fp32").at(i).get<double>();
      std::printf("  %s: choice %zu differs where fp32's margin is %.4f\n",
                  test_case.at("name").get<std::string>().c_str(), i, margin);
      EXPECT_LE(margin, tolerance.max);
    }
    row += ids.size();
  }
  std::printf("SmolLM2-135M-Instruct over %d ranks: %d of %d choices differ\n", GetParam(),
              near_ties, choices);
  rounded.expect_max_within(against_rounded(golden), "rounded");
  fp32.expect_max_within(tolerance, "fp32");
  if (!whole) return;
  EXPECT_LE(rounded.rms(), against_rounded(golden).rms);
  EXPECT_LE(fp32.rms(), tolerance.rms);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RealGolden, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param) + "_ranks"; });

}  // namespace
}  // namespace outrider
