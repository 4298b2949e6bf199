#include "comm/world.h"

#include <mpi.h>
#include <sched.h>

#include <climits>
#include <cstdlib>
#include <exception>

#include "comm/mpi_communicator.h"

namespace outrider {

bool launched_by_mpi() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr;
}

World::World(int* argc, char*** argv) : exceptions_at_start_(std::uncaught_exceptions()) {
  int initialized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  CHECK(!initialized);
  // Sums of up to 16 rows go out in one piece over shared memory. OpenMPI's default of 4 KiB makes
  // two rows of 576 floats wait for each other: 26 µs for 8 rows, 8 with this. A user's own setting
  // stays.
  setenv("OMPI_MCA_btl_vader_eager_limit", "65536", 0);
  setenv("OMPI_MCA_btl_vader_max_send_size", "131072", 0);
  int provided = 0;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error("MPI offers no support for processes with threads (MPI_THREAD_FUNNELED)");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");

  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
  check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
}

World::~World() {
  if (std::uncaught_exceptions() == exceptions_at_start_) MPI_Finalize();
}

std::unique_ptr<Communicator> World::make_communicator() {
  unsigned numa_node = 0;
  CHECK(getcpu(nullptr, &numa_node) == 0);
  return make_mpi_communicator(static_cast<int>(numa_node));
}

std::string World::broadcast_string(const std::string& text) {
  uint64_t bytes = text.size();
  check_mpi(MPI_Bcast(&bytes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD), "MPI_Bcast");
  CHECK(bytes <= INT_MAX);
  std::string received = text;
  received.resize(bytes);
  check_mpi(MPI_Bcast(received.data(), static_cast<int>(bytes), MPI_CHAR, 0, MPI_COMM_WORLD),
            "MPI_Bcast");
  return received;
}

std::vector<std::string> World::all_gather_strings(const std::string& mine) {
  CHECK(mine.size() <= INT_MAX);
  const auto bytes = static_cast<int>(mine.size());
  std::vector<int> counts(size_), offsets(size_);
  check_mpi(MPI_Allgather(&bytes, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD),
            "MPI_Allgather");
  int64_t total = 0;
  for (int rank = 0; rank < size_; ++rank) {
    offsets[rank] = static_cast<int>(total);
    total += counts[rank];
    CHECK(total <= INT_MAX);
  }
  std::string joined(total, '\0');
  check_mpi(MPI_Allgatherv(mine.data(), bytes, MPI_CHAR, joined.data(), counts.data(),
                           offsets.data(), MPI_CHAR, MPI_COMM_WORLD),
            "MPI_Allgatherv");
  std::vector<std::string> all;
  for (int rank = 0; rank < size_; ++rank)
    all.push_back(joined.substr(offsets[rank], counts[rank]));
  return all;
}

int64_t World::least(int64_t mine) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD),
            "MPI_Allreduce");
  return mine;
}

}  // namespace outrider
