// See intake.h.
#include "server/intake.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/retry_error.h"

namespace outrider {

namespace {

constexpr int kThreads = 2;
// A waiting message's bytes stand for its tokens until they are known: a token has at least one.
constexpr int64_t kBytesPerToken = 4;

}  // namespace

Intake::Intake(Engine& engine, const ChatTemplate& chat_template, int64_t max_waiting,
               int64_t max_waiting_tokens, const ServiceRate& service_rate)
    : engine_(engine),
      context_(make_request_context(engine.tokenizer(), chat_template, engine.limits())),
      max_waiting_(max_waiting),
      max_waiting_tokens_(max_waiting_tokens),
      service_rate_(service_rate) {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
}

Intake::~Intake() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const Item& item : waiting_) {
    item.sink->on_error(absl::UnavailableError("the server is shutting down"));
  }
}

void Intake::enqueue(v1::GenerateRequest&& request, std::string request_id, uint64_t tenant,
                     std::shared_ptr<RequestSink> sink) {
  const EngineStats stats = engine_.stats();
  const auto bytes = static_cast<int64_t>(request.ByteSizeLong());
  // It may ask for any number: whether that is allowed is not known yet.
  const int64_t answers =
      std::clamp<int64_t>(request.sampling_params().n(), 1, engine_.limits().max_choices);
  int64_t ahead = stats.num_requests_waiting;
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    ahead += waiting_answers_;
    const int64_t tokens =
        stats.num_tokens_waiting + (waiting_bytes_ + answers * bytes) / kBytesPerToken;
    if (ahead >= max_waiting_ || (ahead > 0 && ahead + answers > max_waiting_)) {
      what = absl::StrCat(ahead, " answers, of ", max_waiting_, " that may, are waiting already");
    } else if (ahead > 0 && tokens > max_waiting_tokens_) {
      what = absl::StrCat("with this request prompts of about ", tokens, " tokens would wait, of ",
                          max_waiting_tokens_, " that may");
    } else {
      waiting_answers_ += answers;
      waiting_bytes_ += answers * bytes;
      waiting_.push_back({std::move(request), answers, answers * bytes, std::move(request_id),
                          tenant, std::move(sink), std::chrono::steady_clock::now()});
      wake_.notify_one();
      return;
    }
  }
  sink->on_error(retry_error(what + "; try again later",
                             service_rate_.retry_delay(ahead, stats.num_requests_running)));
}

void Intake::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    Item item = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_answers_ -= item.answers;
    waiting_bytes_ -= item.bytes;
    lock.unlock();
    process(std::move(item));
    lock.lock();
  }
}

void Intake::process(Item item) {
  if (item.sink->cancelled()) {
    item.sink->on_error(absl::CancelledError("cancelled while waiting"));
    return;
  }
  // One request may fail on its way (a regular expression's limits, memory): it alone ends.
  absl::Status status;
  try {
    absl::StatusOr<Request> request = to_request(item.request, context_);
    status = request.status();
    if (status.ok()) {
      request->request_id = item.request_id;
      request->tenant = item.tenant;
      request->received = item.received;
      engine_.submit(*std::move(request), item.sink);
    }
  } catch (const std::exception& error) {
    status = absl::InternalError(absl::StrCat("cannot prepare the request: ", error.what()));
  }
  if (!status.ok()) item.sink->on_error(status);
}

}  // namespace outrider
