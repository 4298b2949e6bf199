// Each rank publishes the address of its data; between two barriers the others read it.
#include "comm/thread_communicator.h"

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "comm/ordered_sum.h"

namespace outrider {

class ThreadGroup {
 public:
  explicit ThreadGroup(int size) : published_(size) {}

  int size() const { return static_cast<int>(published_.size()); }

  // [ranks]: what each passed to the publish() that all have reached. Valid until done_reading().
  const std::vector<TensorView>& publish(int rank, TensorView view) {
    published_[rank] = view;
    if (!all_arrive(/*abortable=*/true))
      throw Error("another rank of this thread group has failed");
    for (const TensorView& other : published_) CHECK(other.bytes() == view.bytes());
    return published_;
  }
  // Returns when no rank reads what was published. All are on their way here, so nothing aborts it.
  void done_reading() { all_arrive(/*abortable=*/false); }

  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  // A barrier. False where the group was aborted before all had arrived.
  bool all_arrive(bool abortable) {
    std::unique_lock lock(mutex_);
    if (abortable && aborted_) return false;
    const uint64_t round = round_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || (abortable && aborted_); });
    return round_ != round;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  uint64_t round_ = 0;
  bool aborted_ = false;
  std::vector<TensorView> published_;
};

namespace {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  ThreadGroup& group() { return *group_; }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  bool is_near() const override { return true; }

  void all_reduce_sum(TensorView x, Stream&) override {
    CHECK(x.dtype() == DType::f32 && x.contiguous());
    if (size() == 1 || x.bytes() == 0) return;
    gather(x);
    ordered_sum(reinterpret_cast<const float*>(scratch_.data()), size(), x.size(), x.data<float>());
  }

  void all_gather(TensorView mine, TensorView all, Stream&) override {
    CHECK(mine.contiguous() && all.contiguous() && all.bytes() == size() * mine.bytes());
    if (mine.bytes() == 0) return;
    gather(mine);
    std::memcpy(all.raw(), scratch_.data(), all.bytes());
  }

  void broadcast(TensorView x, int root, Stream&) override {
    CHECK(x.contiguous() && 0 <= root && root < size());
    if (x.bytes() == 0) return;
    const TensorView source = group_->publish(rank_, x)[root];
    if (rank_ != root) std::memcpy(x.raw(), source.raw(), x.bytes());
    group_->done_reading();
  }

 private:
  // Copies every rank's `mine` to scratch_, in rank order.
  void gather(TensorView mine) {
    const size_t bytes = mine.bytes();
    if (scratch_.size() < size() * bytes) scratch_.resize(size() * bytes);
    const std::vector<TensorView>& parts = group_->publish(rank_, mine);
    for (int rank = 0; rank < size(); ++rank) {
      std::memcpy(scratch_.data() + rank * bytes, parts[rank].raw(), bytes);
    }
    group_->done_reading();
  }

  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size) {
  CHECK(size >= 1);
  const auto group = std::make_shared<ThreadGroup>(size);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return communicators;
}

void abort_thread_group(Communicator& member) {
  auto* const communicator = dynamic_cast<ThreadCommunicator*>(&member);
  CHECK(communicator != nullptr);
  communicator->group().abort();
}

void run_thread_ranks(int size, const std::function<void(Communicator&)>& body) {
  const auto communicators = make_thread_communicators(size);
  std::mutex mutex;
  std::exception_ptr first;  // the cause; what the others throw follows from it
  {
    std::vector<std::jthread> threads;
    for (const auto& communicator : communicators) {
      threads.emplace_back([&mutex, &first, &body, &communicator = *communicator] {
        try {
          body(communicator);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (first == nullptr) first = std::current_exception();
          abort_thread_group(communicator);
        }
      });
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace outrider
