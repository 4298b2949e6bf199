// A sharded model over MPI, where ranks are processes: the logits that ranks as threads compute,
// bit for bit, since both sum in rank order.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/model/model_runner.h"
#include "tests/mpi/mpi_world.h"
#include "tests/testing/checkpoints.h"

namespace outrider {
namespace {

// 70 tokens in chunks of 32: sums of small and of large messages.
std::vector<Logits> feed(ModelRunner& runner) {
  std::vector<int32_t> tokens(70);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 300);
  return runner.feed(0, tokens, 32);
}

class TransformerOverMpi : public ::testing::TestWithParam<const char*> {};

TEST_P(TransformerOverMpi, ComputesWhatThreadsCompute) {
  World& world = testing::mpi_world();
  const auto directory = test_checkpoint(GetParam());
  const auto expected = run_ranks(directory, world.size(), feed);

  set_float_environment();
  const auto communicator = world.make_communicator();
  ModelRunner runner(directory, *communicator);
  const auto found = feed(runner);
  const Range mine = runner.model().shard().vocab;
  ASSERT_EQ(found.size(), expected.size());
  for (size_t row = 0; row < found.size(); ++row) {
    ASSERT_EQ(static_cast<int64_t>(found[row].size()), mine.size());
    EXPECT_EQ(std::memcmp(found[row].data(), expected[row].data() + mine.begin,
                          found[row].size() * sizeof(float)),
              0)
        << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TransformerOverMpi,
                         ::testing::Values("tiny", "tiny-odd", "tiny-llama3", "tiny-gpt2",
                                           "tiny-gpt2-odd"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace outrider
