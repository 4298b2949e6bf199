// The engine over MPI, where ranks are processes: the tokens of ranks as threads.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/job_control.h"
#include "tests/mpi/mpi_world.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/engine_harness.h"

namespace outrider {
namespace {

// Rank 0: the answers. Every other rank: none.
std::vector<CollectedAnswer> run_over_mpi(const EngineOptions& options,
                                          const std::vector<Request>& requests) {
  World& world = testing::mpi_world();
  const auto backend = make_cpu_backend();
  const auto communicator = world.make_communicator();
  const JobControl control = open_control(world);
  Executor executor(options, *backend, *communicator);
  if (world.rank() == 0) return lead_requests(executor, control.server.get(), requests);
  run_follower(executor, *control.client);
  return {};
}

TEST(EngineOverMpi, AnswersAsThreadsAnswer) {
  EngineOptions options;
  options.model = test_checkpoint("tiny");
  options.draft = options.model;  // most drafts are accepted
  options.prefill_chunk = 32;
  std::vector<Request> requests;
  for (const std::string drafter : {"model", "prompt_lookup"}) {
    for (const int length : {1, 20, 70}) {
      requests.push_back(greedy_request(length, length, 40, 4, drafter));
    }
    requests.push_back(greedy_request(20, 3, 40, 4, drafter));
    requests.back().sampling.temperature = 1.0f;
    requests.back().sampling.seed = 7;
  }

  const auto found = run_over_mpi(options, requests);
  if (testing::mpi_world().rank() > 0) return;
  const auto expected = run_requests(options, testing::mpi_world().size(), requests);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i].completion) << found[i].status;
    ASSERT_TRUE(expected[i].completion) << expected[i].status;
    EXPECT_EQ(found[i].token_ids.size(), 40u);
    EXPECT_EQ(found[i].token_ids, expected[i].token_ids) << "request " << i;
    EXPECT_EQ(found[i].completion->speculation.num_accepted_draft_tokens,
              expected[i].completion->speculation.num_accepted_draft_tokens);
  }
  EXPECT_GT(found[0].completion->speculation.num_accepted_draft_tokens, 0);
}

}  // namespace
}  // namespace outrider
