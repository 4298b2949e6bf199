// `outrider launch`: starts `outrider serve` on several ranks through mpirun, passes on requests to
// end, and starts the job again when it has died.
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "launcher/command_line.h"
#include "launcher/mpirun.h"
#include "launcher/quarantine_memory.h"
#include "launcher/restart_policy.h"
#include "launcher/stop_signals.h"
#include "launcher/supervision.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = 64;
// What mpirun has to end the other ranks once rank 0 has died, before all of them are killed.
constexpr milliseconds kTeardownTimeout{1500};
// The same where the job ends in order, and what rank 0 has for that once it was told to end now.
constexpr milliseconds kStopTimeout{10'000};
// What a job has to end once rank 0 has said that it ends in order, more than its ranks allow
// themselves: where one is held up, its alarm comes to nothing.
constexpr milliseconds kFinishedTimeout{20'000};
// What killed processes have to be gone: a driver that has failed may hold one for ever.
constexpr milliseconds kKillTimeout{10'000};
constexpr int kKillingRequest = 3;

struct LaunchOptions {
  std::string config;  // a file; empty: none
  int ranks = 0;
  std::string hostfile;
  bool no_restart = false;
  std::vector<std::string> command;
};

sigset_t awaited_signals() {
  sigset_t signals = ending_signals();
  sigaddset(&signals, SIGCHLD);
  return signals;
}

// One start of the job after the other.
class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (options_.hostfile.empty()) scratch_.emplace();
    // Whoever started this may have ignored the ends of children: then none would be told.
    signal(SIGCHLD, SIG_DFL);
    const sigset_t awaited = awaited_signals();
    pthread_sigmask(SIG_BLOCK, &awaited, &mask_before_);
    signals_ = FileDescriptor(signalfd(-1, &awaited, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) throw Error(std::string("signalfd failed: ") + std::strerror(errno));
  }

  int run() {
    while (true) {
      start();
      int status = supervise();
      if (const std::vector<pid_t> left = kill_children(kKillTimeout, others_); !left.empty()) {
        say(absl::StrFormat(
            "the job has ended: %s; it is not started again, since these processes "
            "do not end, whatever holds them: %s",
            job_->failure().empty() ? describe_mpirun_status(status) : job_->failure(),
            absl::StrJoin(left, ", ")));
        return kExitFailed;
      }
      take_signals();
      // mpirun may have been killed for being slow to end; what the job said comes first.
      if (!job_->failure().empty()) status = kExitFailed;
      if (scratch_) scratch_->clear();
      if (num_requests_ > 0 && !served_since_) return status_without_job();
      if (num_requests_ > 0 || status == 0 || options_.no_restart) return status;
      const std::string why =
          job_->failure().empty() ? describe_mpirun_status(status) : job_->failure();
      const auto delay = policy_.after({.at = Clock::now(),
                                        .served_since = served_since_,
                                        .explained = job_->explained() || status == kNoMpirun});
      if (!delay) {
        if (++num_failed_starts_ > 1) {
          say(absl::StrFormat("giving up after %d starts that failed: %s", num_failed_starts_,
                              why));
        }
        return status;
      }
      num_failed_starts_ = served_since_ ? 0 : num_failed_starts_ + 1;
      say(absl::StrFormat("the job has ended: %s; starting it again%s", why,
                          delay->count() == 0 ? "" : absl::StrFormat(" in %d s", delay->count())));
      if (!wait_out(*delay)) return status_without_job();
    }
  }

 private:
  static void say(const std::string& line) { std::fprintf(stderr, "outrider: %s\n", line.c_str()); }

  void start() {
    job_.emplace(control_host(options_.hostfile.empty()));
    served_since_.reset();
    setenv(kSupervisorAddressVariable, job_->address().c_str(), 1);
    setenv(kSupervisorSecretVariable, job_->secret().c_str(), 1);
    mpirun_ = start_mpirun(mpirun_arguments(options_.ranks, options_.hostfile, options_.command),
                           mask_before_);
  }

  // Waits for mpirun's end and returns the exit status of the job.
  int supervise() {
    Deadline deadline = kNoDeadline;  // for mpirun to end by itself
    const auto ends_within = [&deadline](milliseconds timeout) {
      deadline = std::min(deadline, Clock::now() + timeout);
    };
    while (true) {
      int status = SIGKILL;  // where mpirun has ended, and nobody can tell how
      if (waitpid(mpirun_, &status, WNOHANG) != 0) {
        listen();  // to its last words
        return status_of_job(status);
      }
      wait_for_events(deadline);
      const int requests_before = num_requests_;
      take_signals();
      const bool had_ended = job_->ended(), had_failed = !job_->failure().empty();
      const bool had_finished = job_->finished();
      listen();
      if (num_requests_ > requests_before) deadline = std::min(deadline, pass_on_request());
      if (job_->ended() && !had_ended) {
        const bool in_order = job_->finished() || num_requests_ > 0;
        ends_within(in_order ? kStopTimeout : kTeardownTimeout);
      }
      // It ends itself then, unless something holds it.
      if (!job_->failure().empty() && !had_failed) ends_within(kStopTimeout);
      if (job_->finished() && !had_finished) ends_within(kFinishedTimeout);
      if (Clock::now() >= deadline) {
        kill(mpirun_, SIGKILL);
        deadline = kNoDeadline;
      }
    }
  }

  // status: as waitpid tells it of mpirun.
  int status_of_job(int status) const {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    // mpirun was killed, or a rank's alarm has gone off. Behind an orderly end that is nothing.
    const bool has_hung = WIFSIGNALED(status) || code == 128 + SIGALRM;
    return job_->finished() && has_hung && num_requests_ < kKillingRequest ? 0 : code;
  }

  // Where a request to end has come while nothing was served.
  int status_without_job() const { return policy_.ever_served() ? 0 : 128 + first_signal_; }

  void listen() {
    job_->update();
    if (job_->served_on_gpus()) setenv(kServedOnGpusVariable, "1", 1);  // for the next start
    if (job_->served() && !served_since_) served_since_ = Clock::now();
  }

  // The first request drains the job, the second ends it now, a third kills it. Returns when mpirun
  // has to have ended.
  Deadline pass_on_request() {
    if (num_requests_ >= kKillingRequest) return Clock::now();
    if (!job_->connected()) {
      kill(mpirun_, SIGTERM);  // nothing is served yet: the ranks end at once
      return Clock::now() + kStopTimeout;
    }
    job_->request(num_requests_ == 1 ? StopRequest::drain : StopRequest::now);
    return num_requests_ == 1 ? kNoDeadline : Clock::now() + kStopTimeout;
  }

  // False where a request to end has come instead.
  bool wait_out(seconds delay) {
    const Deadline deadline = Clock::now() + delay;
    while (Clock::now() < deadline && num_requests_ == 0) {
      pollfd signals{signals_.get(), POLLIN, 0};
      poll(&signals, 1, poll_timeout_ms(deadline));
      take_signals();
    }
    return num_requests_ == 0;
  }

  void wait_for_events(Deadline deadline) {
    std::vector<pollfd> polls{{signals_.get(), POLLIN, 0}};
    job_->append_polls(polls);
    poll(polls.data(), polls.size(), poll_timeout_ms(deadline));
  }

  void take_signals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGCHLD) continue;
      // A terminal that is closed sends it twice, by its shell and by the kernel.
      if (info.ssi_signo == SIGHUP && num_requests_ > 0) continue;
      if (num_requests_++ == 0) first_signal_ = static_cast<int>(info.ssi_signo);
    }
  }

  const LaunchOptions& options_;
  const std::vector<pid_t> others_ = children();  // of whatever this program was before
  std::optional<ScratchDirectories> scratch_;     // where all ranks are on this host
  const FileDescriptor quarantine_ = make_quarantine_memory();
  FileDescriptor signals_;
  sigset_t mask_before_;
  pid_t mpirun_ = -1;
  std::optional<JobLink> job_;
  std::optional<Clock::time_point> served_since_;
  RestartPolicy policy_;
  int num_requests_ = 0;  // to end, by signals
  int first_signal_ = 0;
  int num_failed_starts_ = 0;  // since it last served
};

int launch(const LaunchOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // who reads what is said may be gone
  if (!options.config.empty()) {
    setenv(kConfigVariable, std::filesystem::absolute(options.config).c_str(), 1);
  }
  // Wrong flags are told once, here, and not by every rank.
  int exit_code = 0;
  if (!parse_command_line(options.command, exit_code)) return exit_code;
  return Launcher(options).run();
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
  command->add_flag("--no-restart", options->no_restart,
                    "End when the job has died, instead of starting it again");
  command->add_option("command", options->command, "serve and its flags, behind --")
      ->required()
      ->expected(1, 1 << 20);
  command->callback([&app, options, &action] {
    options->config = app.get_config_ptr()->as<std::string>();
    if (options->command.front() != "serve") {
      throw CLI::ValidationError("launch",
                                 "expected serve behind --, found " + options->command.front());
    }
    action = [options] { return launch(*options); };
  });
}

}  // namespace outrider
