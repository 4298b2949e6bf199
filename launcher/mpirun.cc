// See mpirun.h.
#include "launcher/mpirun.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "core/error.h"

extern char** environ;

namespace outrider {
namespace {

constexpr const char* kSharedMemoryDirectories = "/dev/shm/outrider-";
constexpr const char* kSharedMemoryVariable = "OMPI_MCA_btl_vader_backing_directory";

// The child, in a process group of its own: the terminal's Ctrl-C reaches the launcher alone.
[[noreturn]] void become_mpirun(const std::vector<std::string>& arguments,
                                const sigset_t& signal_mask) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  pthread_sigmask(SIG_SETMASK, &signal_mask, nullptr);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "outrider: cannot start mpirun: %s\n", std::strerror(errno));
  _exit(kNoMpirun);
}

std::vector<pid_t> children() {
  std::ifstream file("/proc/thread-self/children");
  std::vector<pid_t> found;
  for (pid_t pid; file >> pid;) found.push_back(pid);
  return found;
}

// Nobody else has it, and it is there; else invalid. Given up with the descriptor, or by the
// kernel.
FileDescriptor lock_directory(const std::string& path) {
  FileDescriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat opened, there;
  if (!directory.valid() || flock(directory.get(), LOCK_EX | LOCK_NB) != 0 ||
      fstat(directory.get(), &opened) != 0 || stat(path.c_str(), &there) != 0 ||
      opened.st_ino != there.st_ino) {
    return {};
  }
  return directory;
}

// Removes directories whose launcher is gone.
void sweep() {
  namespace fs = std::filesystem;
  const fs::path prefix = kSharedMemoryDirectories;
  std::error_code error;  // another user's, or gone meanwhile: none of ours
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(prefix.parent_path(), error)) {
    if (entry.path().filename().string().starts_with(prefix.filename().string())) {
      found.push_back(entry.path());
    }
  }
  for (const fs::path& path : found) {
    if (lock_directory(path).valid()) fs::remove_all(path, error);
  }
}

}  // namespace

std::vector<std::string> mpirun_arguments(int ranks, const std::string& hostfile,
                                          const std::vector<std::string>& command) {
  // Without --bind-to none a rank and all its threads would be bound to one core.
  std::vector<std::string> arguments = {"mpirun", "--quiet", "--bind-to",
                                        "none",   "-np",     std::to_string(ranks)};
  if (geteuid() == 0) arguments.push_back("--allow-run-as-root");
  if (hostfile.empty()) {
    // mpirun counts physical cores, and refuses more ranks than these.
    arguments.push_back("--oversubscribe");
  } else {
    arguments.insert(arguments.end(), {"--hostfile", hostfile});
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view setting = *variable;
      if (setting.substr(0, 9) != "OUTRIDER_") continue;
      arguments.insert(arguments.end(), {"-x", std::string(setting.substr(0, setting.find('=')))});
    }
  }
  arguments.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  arguments.insert(arguments.end(), command.begin(), command.end());
  return arguments;
}

pid_t start_mpirun(const std::vector<std::string>& arguments, const sigset_t& signal_mask) {
  const pid_t mpirun = fork();
  if (mpirun < 0) throw Error(std::string("cannot start mpirun: ") + std::strerror(errno));
  if (mpirun == 0) become_mpirun(arguments, signal_mask);
  return mpirun;
}

std::string describe_mpirun_status(int status) {
  if (status > 128 && status < 128 + SIGRTMIN) {
    return absl::StrFormat("a rank was ended by signal %d (%s)", status - 128,
                           strsignal(status - 128));
  }
  return absl::StrFormat("mpirun has ended with status %d", status);
}

void kill_children() {
  for (std::vector<pid_t> left = children(); !left.empty(); left = children()) {
    for (const pid_t pid : left) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, 0) < 0 && errno == EINTR) continue;
  }
}

SharedMemory::SharedMemory() {
  if (std::getenv(kSharedMemoryVariable) != nullptr) return;
  sweep();
  // Another launcher's sweep may come between making the directory and locking it.
  do {
    path_ = kSharedMemoryDirectories + std::string("XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) {
      path_.clear();
      return;
    }
    lock_ = lock_directory(path_);
  } while (!lock_.valid());
  setenv(kSharedMemoryVariable, path_.c_str(), 1);
}

SharedMemory::~SharedMemory() {
  clear();
  if (!path_.empty()) rmdir(path_.c_str());
}

void SharedMemory::clear() const {
  if (path_.empty()) return;
  std::error_code error;  // nothing to be done about what cannot be removed
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    std::filesystem::remove(entry.path(), error);
  }
}

}  // namespace outrider
