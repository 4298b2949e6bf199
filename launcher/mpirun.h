// mpirun as a child process: how it is started, what its status means, and what it may leave.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <initializer_list>
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

// Of the calling thread, with those that have ended and that nobody has waited for.
std::vector<pid_t> children();

// Ranks whose mpirun has gone are this process's children, where it is a subreaper. SIGKILL ends a
// stopped one, too. Returns when none is left, so that the port and the memory are free, or those
// that are there behind the timeout: the kernel may hold a process for a device that has failed.
// others: children that are left alone, and not waited for, so that their numbers stay theirs. What
// they leave behind themselves is not told from ranks.
std::vector<pid_t> kill_children(std::chrono::milliseconds timeout,
                                 const std::vector<pid_t>& others = {});

// A directory for what OpenMPI leaves behind where mpirun or a rank was killed.
class ScratchDirectory {
 public:
  // In `parent`, for the jobs that are started from now on; `variable` tells OpenMPI. What this
  // user's launchers on this host that were killed themselves have left there is removed. There is
  // none where it cannot be made, or where the environment has that variable or one of `others`:
  // the user's own choice.
  ScratchDirectory(const std::filesystem::path& parent, const char* variable,
                   std::initializer_list<const char*> others);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  // What a job that has ended has left.
  void clear() const;

 private:
  std::string path_;     // empty: there is none
  FileDescriptor lock_;  // on the directory, as long as this process lives
};

// Those of a job whose ranks are all on this host.
struct ScratchDirectories {
  ScratchDirectories();
  void clear() const;

  ScratchDirectory shared_memory, session;
};

}  // namespace outrider
