// `outrider launch`: starts `outrider serve` on several ranks through mpirun, and passes on its
// end.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "launcher/command_line.h"

extern char** environ;

namespace outrider {
namespace {

constexpr int kMaxRanks = 64;
// What rank 0 has to end the job in order, before mpirun is told to end it.
constexpr timespec kStopTimeout{.tv_sec = 10, .tv_nsec = 0};

struct LaunchOptions {
  int ranks = 0;
  std::string hostfile;
  std::vector<std::string> command;
};

std::vector<std::string> mpirun_arguments(const LaunchOptions& options) {
  // Without --bind-to none a rank and all its threads would be bound to one core.
  std::vector<std::string> arguments = {"mpirun", "--quiet", "--bind-to",
                                        "none",   "-np",     std::to_string(options.ranks)};
  if (geteuid() == 0) arguments.push_back("--allow-run-as-root");
  if (options.hostfile.empty()) {
    // mpirun counts physical cores, and refuses more ranks than these.
    arguments.push_back("--oversubscribe");
  } else {
    arguments.insert(arguments.end(), {"--hostfile", options.hostfile});
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view setting = *variable;
      if (setting.substr(0, 9) != "OUTRIDER_") continue;
      arguments.insert(arguments.end(), {"-x", std::string(setting.substr(0, setting.find('=')))});
    }
  }
  arguments.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  arguments.insert(arguments.end(), options.command.begin(), options.command.end());
  return arguments;
}

sigset_t awaited_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, signal);
  return signals;
}

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
  _exit(127);
}

// Waits for mpirun's end and returns the exit code of the job. The first signal asks rank 0 for an
// orderly end (mpirun hands SIGUSR1 on to all ranks, and to end the job itself it would kill them a
// second after it told them); a second one, or time, ends mpirun.
int supervise(pid_t mpirun, const sigset_t& awaited) {
  bool stopping = false;
  while (true) {
    const int signal = sigtimedwait(&awaited, nullptr, stopping ? &kStopTimeout : nullptr);
    if (signal == SIGCHLD) {
      int status = 0;
      if (waitpid(mpirun, &status, WNOHANG) == 0) continue;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (signal < 0 && errno == EINTR) continue;
    kill(mpirun, std::exchange(stopping, true) ? SIGTERM : SIGUSR1);
  }
}

int launch(const LaunchOptions& options) {
  // Wrong flags are told once, here, and not by every rank.
  int exit_code = 0;
  if (!parse_command_line(options.command, exit_code)) return exit_code;

  const std::vector<std::string> arguments = mpirun_arguments(options);
  const sigset_t awaited = awaited_signals();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &awaited, &before);
  const pid_t mpirun = fork();
  if (mpirun < 0) throw Error(std::string("cannot start mpirun: ") + std::strerror(errno));
  if (mpirun == 0) become_mpirun(arguments, before);
  return supervise(mpirun, awaited);
}

}  // namespace

void add_launch_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command =
      app.add_subcommand("launch", "Start a server on several ranks: launch --ranks N -- serve …");
  command->add_option("--ranks", options->ranks, "Tensor-parallel ranks")
      ->required()
      ->check(CLI::Range(1, kMaxRanks));
  command->add_option("--hostfile", options->hostfile, "mpirun's list of hosts (default: here)")
      ->check(CLI::ExistingFile);
  command->add_option("command", options->command, "serve and its flags, behind --")
      ->required()
      ->expected(1, 1 << 20);
  command->callback([options, &action] {
    if (options->command.front() != "serve") {
      throw CLI::ValidationError("launch",
                                 "expected serve behind --, found " + options->command.front());
    }
    action = [options] { return launch(*options); };
  });
}

}  // namespace outrider
