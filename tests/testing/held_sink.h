// A request whose sink holds the engine's thread up in the middle of its loop.
#pragma once

#include <atomic>

#include "engine/request.h"

namespace outrider {

class HeldSink final : public RequestSink {
 public:
  void on_chunk(Chunk) override {}
  void on_complete(Completion) override {}
  void on_error(absl::Status) override {}
  // Asked before each step: the first answer comes after let_go().
  bool cancelled() const override {
    held_ = true;
    held_.notify_all();
    go_.wait(false);
    return false;
  }

  void wait_until_held() const { held_.wait(false); }
  void let_go() {
    go_ = true;
    go_.notify_all();
  }

 private:
  mutable std::atomic<bool> held_ = false;
  std::atomic<bool> go_ = false;
};

}  // namespace outrider
