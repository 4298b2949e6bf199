// See load_generator.h.
#include "launcher/loadtest/load_generator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

constexpr int kMostSentAtOnce = 64;

// A user of the closed loop whose request failed waits for so long: a server that refuses at once
// is not asked thousands of times a second.
constexpr double kPauseAfterFailureS = 0.1;

constexpr double kNever = std::numeric_limits<double>::infinity();

// Waiting until a time that far away is the same as waiting for ever.
constexpr double kLongestWaitS = 3600;

}  // namespace

LoadGenerator::LoadGenerator(Connections& connections, LoadPlan plan, std::function<Ask()> ask,
                             LoadOptions options)
    : connections_(connections),
      plan_(std::move(plan)),
      ask_(std::move(ask)),
      options_(std::move(options)),
      due_s_(std::greater<>(), plan_.due_s),
      next_report_s_(options_.progress_every_s > 0 ? options_.progress_every_s : kNever) {
  if (!plan_.closed_loop) return;
  connections_.reserve(std::min(std::ssize(plan_.due_s), plan_.max_requests));
}

LoadGenerator::~LoadGenerator() { CHECK(running_.empty()); }

LoadResult LoadGenerator::run(LoadClock::time_point start) {
  start_ = start;
  while (true) {
    send_due();
    if (!sending_ && running_.empty()) break;
    wait();
    collect();
    report();
  }
  std::sort(result_.records.begin(), result_.records.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  const bool to_the_plans_end = std::isfinite(plan_.duration_s) && sent_ < plan_.max_requests;
  result_.load_end_s = std::min(cut_short_s_, to_the_plans_end ? plan_.duration_s : last_end_s_);
  return std::move(result_);
}

void LoadGenerator::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  wake_.notify_one();
}

void LoadGenerator::send_due() {
  for (int sent = 0; sending_ && sent < kMostSentAtOnce; ++sent) {
    const bool users_wait = plan_.closed_loop && !running_.empty();
    if (sent_ == plan_.max_requests || (due_s_.empty() && !users_wait)) {
      sending_ = false;
    } else if (due_s_.empty() || due_s_.top() > now_s()) {
      return;
    } else {
      send(due_s_.top());
      due_s_.pop();
    }
  }
}

void LoadGenerator::send(double due_s) {
  Ask ask = ask_();
  RequestRecord record;
  record.index = record.question = sent_++;
  record.prompt = ask.prompt;
  record.max_tokens = ask.request.sampling_params().max_tokens();
  record.due_s = due_s;
  auto call = std::make_unique<StreamingCall>(std::move(record), std::move(ask.request), start_,
                                              tokens_, [this](StreamingCall* done) {
                                                const std::lock_guard lock(mutex_);
                                                ended_.push_back(done);
                                                wake_.notify_one();
                                              });
  Connections::Connection& connection = connections_.with_room();
  ++connection.num_streams;
  StreamingCall& running = *call;
  running_.emplace(&running, Running{std::move(call), &connection});
  running.send(*connection.stub, options_.timeout_s);
}

void LoadGenerator::wait() {
  const double next_due_s = sending_ && !due_s_.empty() ? due_s_.top() : kNever;
  const double until_s = std::min({next_due_s, next_report_s_, now_s() + kLongestWaitS});
  const auto until = start_ + std::chrono::duration_cast<LoadClock::duration>(
                                  std::chrono::duration<double>(until_s));
  std::unique_lock lock(mutex_);
  wake_.wait_until(lock, until, [this] { return stop_ || !ended_.empty(); });
}

void LoadGenerator::collect() {
  std::vector<StreamingCall*> ended;
  bool stop = false;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
    std::swap(stop, stop_);
  }
  for (StreamingCall* call : ended) finished(*call);
  if (!stop) return;
  result_.interrupted = true;
  cut_short();
  for (const auto& [call, _] : running_) call->cancel();
}

void LoadGenerator::finished(StreamingCall& call) {
  const auto running = running_.find(&call);
  --running->second.connection->num_streams;
  RequestRecord& record = call.record();
  ++(record.ok() ? succeeded_ : failed_);
  if (!record.ok() && record.index < kGiveUpAfter) ++first_failed_;
  if (plan_.closed_loop) {
    const double due_s = record.end_s + (record.ok() ? 0 : kPauseAfterFailureS);
    if (due_s < plan_.duration_s) due_s_.push(due_s);
  }
  last_end_s_ = std::max(last_end_s_, record.end_s);
  result_.records.push_back(std::move(record));
  running_.erase(running);
  if (sending_ && succeeded_ == 0 && first_failed_ == kGiveUpAfter) {
    result_.gave_up = true;
    cut_short();
  }
}

void LoadGenerator::cut_short() {
  sending_ = false;
  cut_short_s_ = std::min(cut_short_s_, now_s());
}

void LoadGenerator::report() {
  const double now = now_s();
  if (now < next_report_s_) return;
  next_report_s_ = now + options_.progress_every_s;
  options_.on_progress({.elapsed_s = now,
                        .running = static_cast<int64_t>(running_.size()),
                        .done = succeeded_,
                        .errors = failed_,
                        .tokens = tokens_});
}

}  // namespace outrider
