// PortProbe: whether the port that this process listens on still takes connections. Where accept()
// finds no descriptor left, gRPC 1.51 never accepts again and tells nobody (CVE-2023-4785).
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/socket.h"

namespace outrider {

struct ProbeTimes {
  std::chrono::milliseconds between{5000};
  std::chrono::milliseconds answer{5000};  // an answer, if only that it closes, takes no longer
};

class PortProbe {
 public:
  // Connects to one or the other of the addresses (own_addresses) now and then. on_dead: told once,
  // by the probe's thread, when kProbes times in a row none had an answer, or another port, which
  // is asked as often, says that it has ended.
  PortProbe(std::vector<std::string> addresses, std::function<void()> on_dead,
            ProbeTimes times = {}, std::function<bool()> other_ended = {});
  ~PortProbe();

 private:
  static constexpr int kProbes = 3;

  void run();
  bool is_answered(const std::string& address);

  std::vector<std::string> addresses_;
  std::function<void()> on_dead_;
  ProbeTimes times_;
  std::function<bool()> other_ended_;
  FileDescriptor spare_;  // given up for the connection: others may hold all that there are
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace outrider
