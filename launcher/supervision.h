// The connection between `outrider launch` and rank 0 of its job, wherever that runs: launch asks
// for a drain or a stop, rank 0 says that it serves, or why it cannot. (A signal through mpirun
// would reach the ranks a second late, and they would be killed a second after that.)
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/greeting.h"
#include "comm/socket.h"
#include "launcher/stop_signals.h"

namespace outrider {

// Where rank 0 finds its launcher: "host:port", and the secret that it greets with.
constexpr const char* kSupervisorAddressVariable = "OUTRIDER_SUPERVISOR";
constexpr const char* kSupervisorSecretVariable = "OUTRIDER_SUPERVISOR_SECRET";
// Set where a job before this one, which it goes on for, served on GPUs.
constexpr const char* kServedOnGpusVariable = "OUTRIDER_SERVED_ON_GPUS";

// Rank 0's end.
class SupervisorLink {
 public:
  // Null where no launcher is named in the environment. Requests go to `signals`; the end of the
  // launcher is one to stop now. Throws Error where the launcher cannot be reached.
  static std::unique_ptr<SupervisorLink> connect(StopSignals& signals);
  ~SupervisorLink();

  // Thread-safe. A launcher that has gone is none of the caller's business.
  void serving(bool on_gpus);
  void failed(const std::string& why);
  // As failed(), where another rank is lost: what fails here behind that explains nothing either.
  void lost(const std::string& what);
  void finished();  // as it was told to

 private:
  SupervisorLink(FileDescriptor connection, StopSignals& signals);
  void send(std::string_view text);
  void receive(StopSignals& signals);

  std::atomic<bool> ending_ = false;
  FrameSocket socket_;
  std::mutex mutex_;  // guards sending
  std::thread thread_;
};

// The launcher's end, for one start of the job. It never waits.
class JobLink {
 public:
  // Listens on `host`, where rank 0 can reach it.
  explicit JobLink(const std::string& host);

  // For the environment of the job.
  const std::string& address() const { return address_; }
  const std::string& secret() const { return secret_; }

  void append_polls(std::vector<pollfd>& polls) const;
  // Takes what has come.
  void update();
  void request(StopRequest request);

  bool connected() const { return socket_.has_value() && !ended_; }
  bool served() const { return served_; }  // at some time
  bool served_on_gpus() const { return served_on_gpus_; }
  bool ended() const { return ended_; }                    // rank 0 was there, and is gone
  bool finished() const { return finished_; }              // in order
  const std::string& failure() const { return failure_; }  // what rank 0 said; may be empty
  // It would come to the same if it were started again.
  bool explained() const { return !failure_.empty() && !lost_; }

 private:
  std::string secret_;
  std::optional<GreetingListener> listener_;  // until rank 0 is there
  std::string address_;
  std::optional<FrameSocket> socket_;
  bool served_ = false;
  bool served_on_gpus_ = false;
  bool ended_ = false;
  bool finished_ = false;
  bool lost_ = false;  // another rank
  std::string failure_;
};

}  // namespace outrider
