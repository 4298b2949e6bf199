// See mpirun.h.
#include "launcher/mpirun.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/host_name.h"

extern char** environ;

namespace outrider {
namespace {

// Of making a scratch directory: another launcher's sweep may come before it is locked.
constexpr int kAttempts = 10;
// How long killed processes are left to end before they are looked for again.
constexpr std::chrono::milliseconds kReapEvery{2};

constexpr std::string_view kUnique = "XXXXXX";  // for mkdtemp

// Of a scratch directory's name, before mkdtemp's characters. Whatever is named so may be removed:
// nobody else names a directory like that. Other hosts' locks may not show on a file system that is
// shared with them.
std::string scratch_prefix() { return "outrider-launch-scratch-" + host_name() + "-"; }

// The child, in a process group of its own: the terminal's Ctrl-C reaches the launcher alone.
[[noreturn]] void become_mpirun(const std::vector<std::string>& arguments,
                                const sigset_t& signal_mask) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  close(STDIN_FILENO);
  open("/dev/null", O_RDONLY);  // in its place, the first that is free
  pthread_sigmask(SIG_SETMASK, &signal_mask, nullptr);
  signal(SIGPIPE, SIG_DFL);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "outrider: cannot start mpirun: %s\n", std::strerror(errno));
  _exit(kNoMpirun);
}

// It is there, this user's, and nobody else has it; else invalid. Given up with the descriptor, or
// by the kernel.
FileDescriptor lock_directory(const std::string& path) {
  FileDescriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat opened, there;
  if (!directory.valid() || fstat(directory.get(), &opened) != 0 || opened.st_uid != geteuid() ||
      flock(directory.get(), LOCK_EX | LOCK_NB) != 0 || stat(path.c_str(), &there) != 0 ||
      opened.st_ino != there.st_ino) {
    return {};
  }
  return directory;
}

// Those that can be read.
std::vector<std::filesystem::path> entries(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    found.push_back(entry->path());
  }
  return found;
}

// Removes directories in `parent` whose launcher is gone.
void sweep(const std::filesystem::path& parent) {
  const std::string prefix = scratch_prefix();
  for (const std::filesystem::path& path : entries(parent)) {
    const std::string name = path.filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kUnique.size()) continue;
    // Held until it is gone: a launcher that has just made it must not get it meanwhile.
    const FileDescriptor lock = lock_directory(path);
    std::error_code error;  // another user's, or gone meanwhile: none of ours
    if (lock.valid()) std::filesystem::remove_all(path, error);
  }
}

// Empty where there is none.
std::filesystem::path temporary_directory() {
  std::error_code error;
  return std::filesystem::temp_directory_path(error);
}

}  // namespace

std::vector<std::string> mpirun_arguments(int ranks, const std::string& hostfile,
                                          const std::vector<std::string>& command) {
  // Without --bind-to none a rank and all its threads would be bound to one core.
  std::vector<std::string> arguments = {"mpirun", "--quiet", "--bind-to",
                                        "none",   "-np",     std::to_string(ranks)};
  if (geteuid() == 0) arguments.push_back("--allow-run-as-root");
  if (hostfile.empty()) {
    // mpirun counts physical cores, and refuses more ranks than these. By itself it would go to the
    // nodes of a scheduler's allocation, or of its default hostfile.
    arguments.insert(arguments.end(),
                     {"--oversubscribe", "--mca", "ras", "^alps,gridengine,lsf,slurm,tm", "--mca",
                      "orte_default_hostfile", "none", "--mca", "orte_default_dash_host", "none",
                      "--mca", "plm", "isolated"});
  } else {
    arguments.insert(arguments.end(), {"--hostfile", hostfile});
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view setting = *variable;
      if (!setting.starts_with("OUTRIDER_") && !setting.starts_with("NCCL_")) continue;
      arguments.insert(arguments.end(), {"-x", std::string(setting.substr(0, setting.find('=')))});
    }
  }
  // As it was at the first start: where the file has been replaced since, the new one is there.
  static const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  arguments.push_back(program);
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

std::vector<pid_t> children() {
  std::ifstream file("/proc/thread-self/children");
  std::vector<pid_t> found;
  for (pid_t pid; file >> pid;) found.push_back(pid);
  return found;
}

std::vector<pid_t> kill_children(std::chrono::milliseconds timeout,
                                 const std::vector<pid_t>& others) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    std::vector<pid_t> left = children();
    std::erase_if(left, [&](pid_t pid) {
      return std::find(others.begin(), others.end(), pid) != others.end();
    });
    if (left.empty() || std::chrono::steady_clock::now() >= deadline) return left;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    std::this_thread::sleep_for(kReapEvery);
    for (const pid_t pid : left) waitpid(pid, nullptr, WNOHANG);
  }
}

ScratchDirectory::ScratchDirectory(const std::filesystem::path& parent, const char* variable,
                                   std::initializer_list<const char*> others) {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (parent.empty() || is_set(variable) || std::any_of(others.begin(), others.end(), is_set)) {
    return;
  }
  sweep(parent);
  for (int i = 0; i < kAttempts && !lock_.valid(); ++i) {
    std::string path = parent / (scratch_prefix() + std::string(kUnique));
    if (mkdtemp(path.data()) == nullptr) return;
    lock_ = lock_directory(path);
    if (lock_.valid()) {
      path_ = path;
    } else {
      rmdir(path.c_str());
    }
  }
  if (!path_.empty()) setenv(variable, path_.c_str(), 1);
}

ScratchDirectory::~ScratchDirectory() {
  clear();
  if (!path_.empty()) rmdir(path_.c_str());
}

void ScratchDirectory::clear() const {
  if (path_.empty()) return;
  std::error_code error;  // nothing to be done about what cannot be removed
  for (const std::filesystem::path& entry : entries(path_)) {
    std::filesystem::remove_all(entry, error);
  }
}

ScratchDirectories::ScratchDirectories()
    : shared_memory("/dev/shm", "OMPI_MCA_btl_vader_backing_directory", {}),
      session(temporary_directory(), "OMPI_MCA_orte_tmpdir_base",
              {"OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base"}) {}

void ScratchDirectories::clear() const {
  shared_memory.clear();
  session.clear();
}

}  // namespace outrider
