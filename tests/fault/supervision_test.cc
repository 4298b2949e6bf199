// What rank 0 tells `outrider launch` of its end.
#include "launcher/supervision.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <memory>
#include <vector>

namespace outrider {
namespace {

// Both ends, in one process.
struct Link {
  Link() {
    setenv(kSupervisorAddressVariable, job.address().c_str(), 1);
    setenv(kSupervisorSecretVariable, job.secret().c_str(), 1);
    rank_0 = SupervisorLink::connect(signals);
  }

  // Rank 0 ends, and the launcher hears all that it has said.
  void end() {
    rank_0.reset();
    while (!job.ended()) {
      std::vector<pollfd> polls;
      job.append_polls(polls);
      poll(polls.data(), polls.size(), -1);
      job.update();
    }
  }

  StopSignals signals{/*parent_is_mpirun=*/false};
  JobLink job{"127.0.0.1"};
  std::unique_ptr<SupervisorLink> rank_0;
};

TEST(Supervision, WhatFailsIsExplained) {
  Link link;
  link.rank_0->failed("the port is taken");
  link.end();
  EXPECT_EQ(link.job.failure(), "the port is taken");
  EXPECT_TRUE(link.job.explained());
}

TEST(Supervision, ALostRankIsToldAndExplainsNothing) {
  Link link;
  link.rank_0->lost("rank 1 is lost: it closed the connection");
  link.end();
  EXPECT_EQ(link.job.failure(), "rank 1 is lost: it closed the connection");
  EXPECT_FALSE(link.job.explained());
}

TEST(Supervision, NorDoesWhatFailsBehindIt) {
  Link link;
  link.rank_0->lost("rank 1 is lost: it closed the connection");
  link.rank_0->failed("rank 1 is lost: it closed the connection");
  link.end();
  EXPECT_FALSE(link.job.explained());
}

TEST(Supervision, AnEndWithoutAWordExplainsNothing) {
  Link link;
  link.end();
  EXPECT_EQ(link.job.failure(), "");
  EXPECT_FALSE(link.job.explained());
}

}  // namespace
}  // namespace outrider
