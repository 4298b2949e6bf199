#include "backend/stream_timer.h"

#include <chrono>

namespace outrider {
namespace {

class HostTimer final : public StreamTimer {
 public:
  explicit HostTimer(Backend& backend) : backend_(backend) {}

  void start(Stream& stream) override {
    backend_.synchronize(stream);
    started_ = Clock::now();
  }
  void stop(Stream& stream) override {
    backend_.synchronize(stream);
    stopped_ = Clock::now();
  }
  double seconds() override { return std::chrono::duration<double>(stopped_ - started_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Backend& backend_;
  Clock::time_point started_, stopped_;
};

}  // namespace

std::unique_ptr<StreamTimer> make_host_timer(Backend& backend) {
  return std::make_unique<HostTimer>(backend);
}

}  // namespace outrider
