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
  // Connects to the port now and then. on_dead: told once, by the probe's thread, when kProbes
  // connections in a row had no answer. What `address` stands for is asked now, once: that names
  // cannot be resolved for a while says nothing of the port.
  PortProbe(const std::string& address, int port, std::function<void()> on_dead,
            ProbeTimes times = {});
  ~PortProbe();

 private:
  static constexpr int kProbes = 3;

  void run();
  bool is_answered(const std::string& address);

  std::vector<std::string> addresses_;  // where to connect to, "host:port": one answers, or none
  std::function<void()> on_dead_;
  ProbeTimes times_;
  FileDescriptor spare_;  // given up for the connection: others may hold all that there are
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace outrider
