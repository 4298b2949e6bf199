// World: starts and ends MPI, and is the only owner of it. `outrider run` never makes one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace outrider {

// True in a process that mpirun (or srun with PMIx) started. Needs no MPI.
bool launched_by_mpi();

// MPI is called from the thread that makes the World, and from no other. At most one a process.
class World {
 public:
  // Throws Error where MPI cannot be started.
  World(int* argc, char*** argv);
  // Waits for the other ranks, except while an exception unwinds: then the process is left to exit
  // without MPI_Finalize (which would wait for ranks that wait for this one), and mpirun ends the
  // rest as soon as it has.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks on this host
  int local_size() const { return local_size_; }

  // Over all ranks, and no longer alive than this World. Collective.
  std::unique_ptr<Communicator> make_communicator();

  // For start-up only: they allocate, and an MPI call that waits keeps a core busy. Collective.
  std::string broadcast_string(const std::string& text);  // what rank 0 passed, on every rank
  std::vector<std::string> all_gather_strings(const std::string& mine);  // in rank order
  int64_t least(int64_t mine);  // of what the ranks passed, on every rank

 private:
  int exceptions_at_start_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

}  // namespace outrider
