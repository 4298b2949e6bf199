// mpirun as a child process: how it is started, what its status means, and what it may leave.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/socket.h"

namespace outrider {

constexpr int kNoMpirun = 127;  // the exit status where there is none, as a shell's

// What starts this program on `ranks` ranks with the arguments `command`. hostfile: empty where all
// of them run here.
std::vector<std::string> mpirun_arguments(int ranks, const std::string& hostfile,
                                          const std::vector<std::string>& command);

// Call it on the main thread: mpirun is told to end when that does. Throws Error.
pid_t start_mpirun(const std::vector<std::string>& arguments, const sigset_t& signal_mask);

// In words, for a status that is not 0.
std::string describe_mpirun_status(int status);

// Ranks whose mpirun has gone are this process's children, where it is a subreaper. SIGKILL ends a
// stopped one, too. Returns when none is left, so that the port and the memory are free.
void kill_children();

// A directory in which OpenMPI keeps the memory that ranks on this host share: it leaves it behind
// where mpirun was killed.
class SharedMemory {
 public:
  // For the jobs that are started from now on. A user's own choice stays. What launchers that were
  // killed themselves have left is removed.
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // What a job that has ended has left.
  void clear() const;

 private:
  std::string path_;     // empty: not ours
  FileDescriptor lock_;  // on the directory, as long as this process lives
};

}  // namespace outrider
