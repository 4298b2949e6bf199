// ReportingCommunicator: tells of each collective that it begins, so that a step that is slow,
// since its host gives it little of its processors, can be told from one that hangs.
#pragma once

#include "comm/communicator.h"
#include "comm/step_progress.h"

namespace outrider {

class ReportingCommunicator final : public Communicator {
 public:
  // `inner`, which does the work, and `progress` outlive this.
  ReportingCommunicator(Communicator& inner, StepProgress& progress)
      : inner_(inner), progress_(&progress) {}
  // Tells nobody until report_to.
  explicit ReportingCommunicator(Communicator& inner) : inner_(inner) {}

  void report_to(StepProgress& progress) { progress_ = &progress; }

  // Whether this rank was to share some memory, and has a copy to itself.
  bool keeps_copies() const { return keeps_copies_; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool is_near() const override { return inner_.is_near(); }
  void reserve_sum(int64_t max_elements) override { inner_.reserve_sum(max_elements); }
  void all_reduce_sum(TensorView x, Stream& stream) override {
    tell();
    inner_.all_reduce_sum(x, stream);
  }
  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    tell();
    inner_.all_gather(mine, all, stream);
  }
  void broadcast(TensorView x, int root, Stream& stream) override {
    tell();
    inner_.broadcast(x, root, stream);
  }
  bool share(std::span<std::byte> memory) override {
    const bool shared = inner_.share(memory);
    keeps_copies_ |= !shared;
    return shared;
  }
  std::string failure() const override { return inner_.failure(); }

 private:
  void tell() {
    if (progress_ != nullptr) progress_->begin_collective();
  }

  Communicator& inner_;
  StepProgress* progress_ = nullptr;
  bool keeps_copies_ = false;
};

}  // namespace outrider
