// See intake.h.
#include "server/intake.h"

#include <absl/strings/str_cat.h>

#include <exception>
#include <utility>

namespace outrider {

Intake::Intake(Engine& engine, const ChatTemplate& chat_template, int64_t max_waiting)
    : engine_(engine),
      context_(make_request_context(engine.tokenizer(), chat_template, engine.limits())),
      max_waiting_(max_waiting),
      thread_([this] { run(); }) {}

Intake::~Intake() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (const Item& item : waiting_) {
    item.sink->on_error(absl::UnavailableError("the server is shutting down"));
  }
}

void Intake::enqueue(const v1::GenerateRequest& request, std::shared_ptr<RequestSink> sink) {
  const int64_t in_engine = engine_.stats().num_requests_waiting;
  {
    const std::lock_guard lock(mutex_);
    if (in_engine + static_cast<int64_t>(waiting_.size()) < max_waiting_) {
      waiting_.push_back({&request, std::move(sink), std::chrono::steady_clock::now()});
      wake_.notify_one();
      return;
    }
  }
  sink->on_error(absl::ResourceExhaustedError(
      absl::StrCat(max_waiting_, " requests are waiting already; try again later")));
}

void Intake::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const Item item = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    process(item);
    lock.lock();
  }
}

void Intake::process(const Item& item) {
  if (item.sink->cancelled()) {
    item.sink->on_error(absl::CancelledError("cancelled while waiting"));
    return;
  }
  // One request's tokenisation may fail (a regular expression's limits, memory): it alone ends.
  absl::StatusOr<Request> request = absl::UnknownError("");
  try {
    request = to_request(*item.request, context_);
  } catch (const std::exception& error) {
    request = absl::InternalError(absl::StrCat("cannot prepare the request: ", error.what()));
  }
  if (!request.ok()) {
    item.sink->on_error(request.status());
    return;
  }
  request->received = item.received;
  engine_.submit(*std::move(request), item.sink);
}

}  // namespace outrider
