// A whole model on the CUDA backend: its logits are the CPU's within a tolerance, and a row's bits
// are its own.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "model/model_runner.h"
#include "testing/checkpoints.h"

namespace outrider {
namespace {

std::vector<int32_t> text(int length, int vocab) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((i * i * 31 + i * 7 + 11) % vocab);
  return tokens;
}

// A runner on the device, one of one rank.
class CudaTransformer : public testing::TestWithParam<const char*> {
 protected:
  CudaTransformer() { set_float_environment(); }

  std::unique_ptr<ModelRunner> make_runner() {
    return std::make_unique<ModelRunner>(test_checkpoint(GetParam()), *self_, 128, 4, 0,
                                         make_cuda_backend(0));
  }

  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

// Both sides round to bf16 between operations, the norms' outputs, keys, values, attention and
// activation: six times a layer and once at the end. Where sums differ in their last bits some of
// it falls otherwise: independent errors of 2^-9 / sqrt(3) each, of which five standard deviations
// are left to the worst row.
double logits_tolerance(const ModelConfig& config) {
  const double roundings = 2.0 * (6.0 * static_cast<double>(config.num_layers) + 1.0);
  return 5.0 * 0x1p-9 * std::sqrt(roundings / 3.0);
}

TEST_P(CudaTransformer, LogitsAreTheCpus) {
  const auto device = make_runner();
  ModelRunner cpu(test_checkpoint(GetParam()), *self_);
  const auto tokens = text(150, static_cast<int>(cpu.model().config().vocab_size));
  const auto got = device->feed(0, tokens, 64), expected = cpu.feed(0, tokens, 64);
  ASSERT_EQ(got.size(), expected.size());
  double worst = 0;
  for (size_t r = 0; r < got.size(); ++r) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < got[r].size(); ++i) {
      const double d = static_cast<double>(got[r][i]) - expected[r][i];
      difference += d * d;
      norm += static_cast<double>(expected[r][i]) * expected[r][i];
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  EXPECT_LT(worst, logits_tolerance(cpu.model().config()));
  RecordProperty("worst_relative_difference", std::to_string(worst));
}

TEST_P(CudaTransformer, ChunksDoNotShow) {
  const auto whole_runner = make_runner();
  const auto tokens = text(70, static_cast<int>(whole_runner->model().config().vocab_size));
  const auto whole = whole_runner->feed(0, tokens, 70);
  for (const auto& [chunk, length] : {std::pair{1, 25}, {8, 70}, {17, 70}}) {
    const auto runner = make_runner();
    const auto got = runner->feed(2, {tokens.begin(), tokens.begin() + length}, chunk);
    EXPECT_EQ(got, std::vector(whole.begin(), whole.begin() + length)) << "chunks of " << chunk;
  }
}

TEST_P(CudaTransformer, NeighboursDoNotShow) {
  const auto alone = make_runner();
  const auto tokens = text(40, static_cast<int>(alone->model().config().vocab_size));
  const auto expected = alone->feed(0, tokens, 40);
  const auto together = make_runner();
  std::vector<Row> rows;
  std::vector<size_t> mine;
  for (int i = 0; i < 40; ++i) {
    rows.push_back({1, i, tokens[39 - i]});
    mine.push_back(rows.size());
    rows.push_back({3, i, tokens[i]});
    if (i % 3 == 0) rows.push_back({0, i / 3, tokens[i]});
  }
  const auto got = together->forward(rows);
  for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(got[mine[i]], expected[i]) << "row " << i;
}

// Candidates for one position, around the end of what attention reads in one piece: each sees the
// keys and values that the segment before it has just written.
TEST_P(CudaTransformer, OtherCandidatesDoNotShow) {
  const auto alone = make_runner(), together = make_runner();
  const auto vocab = static_cast<int>(alone->model().config().vocab_size);
  const auto tokens = text(132, vocab);
  const auto whole = alone->feed(0, tokens, 66);
  const auto other = [&](int root) { return (tokens[root + 1] + 5) % vocab; };
  constexpr int kFirst = 126, kLast = 128;
  std::vector<Logits> others(kLast + 1);            // by what they stand behind
  for (int root = kLast; root >= kFirst; --root) {  // what was fed behind it counts for nothing
    others[root] = alone->forward({{0, root + 1, other(root)}})[0];
  }
  together->feed(2, std::vector(tokens.begin(), tokens.begin() + kFirst), 63);
  for (int root = kFirst; root <= kLast; ++root) {
    together->forward({{2, root, other(root)}});  // what stood there before is another token's
    const auto got = together->forward({{2, root, tokens[root], false},
                                        {2, root + 1, other(root)},
                                        {2, root + 1, tokens[root + 1]},
                                        {2, root + 2, tokens[root + 2]}},
                                       {1, 2, 4});
    EXPECT_EQ(got, (std::vector{others[root], whole[root + 1], whole[root + 2]})) << root;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, CudaTransformer,
                         testing::Values("tiny", "tiny-odd", "tiny-llama3", "tiny-gpt2",
                                         "tiny-gpt2-odd"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

}  // namespace
}  // namespace outrider
