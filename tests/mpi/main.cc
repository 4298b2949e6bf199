// GoogleTest under mpirun: every rank runs the same tests, and any rank's failure fails the run.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/mpi/mpi_world.h"

namespace outrider::testing {
namespace {

World* world = nullptr;

// A rank whose test has failed leaves at once, since others may wait for it in a collective that it
// will not reach; mpirun then ends them and fails.
class LeaveOnFailure : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& part) override {
    if (part.passed() || part.skipped()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", world->rank(), part.file_name(),
                 part.line_number(), part.summary());
  }
  void OnTestEnd(const ::testing::TestInfo& info) override {
    if (!info.result()->Failed()) return;
    std::fprintf(stderr, "rank %d: %s.%s failed\n", world->rank(), info.test_suite_name(),
                 info.name());
    std::fflush(nullptr);
    std::_Exit(1);
  }
};

}  // namespace

World& mpi_world() { return *world; }

}  // namespace outrider::testing

// OpenMPI keeps what it allocates to the end, from modules that it has unloaded by then, so that no
// suppression can name them. Outrider's own leaks are looked for in the unit tests.
extern "C" int __lsan_is_turned_off() { return 1; }

int main(int argc, char** argv) {
  outrider::World world(&argc, &argv);
  outrider::testing::world = &world;
  ::testing::InitGoogleTest(&argc, argv);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  // Rank 0 tells the story; the others only what went wrong.
  if (world.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new outrider::testing::LeaveOnFailure);
  return RUN_ALL_TESTS();
}
