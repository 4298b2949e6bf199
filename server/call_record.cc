// See call_record.h.
#include "server/call_record.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <random>

#include "engine/metrics.h"

namespace outrider {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// All of it counts from the request's receipt.
void add(const Timings& answer, Timings& all) {
  const double answer_first = answer.queue_ms + answer.prefill_ms;
  const double all_first = all.queue_ms + all.prefill_ms;
  const double first = std::min(all_first, answer_first);
  const double last = std::max(all_first + all.decode_ms, answer_first + answer.decode_ms);
  all.queue_ms = std::min(all.queue_ms, answer.queue_ms);
  all.prefill_ms = first - all.queue_ms;
  all.decode_ms = last - first;
  all.total_ms = std::max(all.total_ms, answer.total_ms);
}

}  // namespace

void CallRecord::chunk(const Chunk& chunk) {
  num_tokens_ += static_cast<int64_t>(chunk.token_ids.size());
  if (chunk.index != 0 || chunk.token_ids.empty()) return;
  const auto now = Clock::now();
  if (last_chunk_) {
    observers_.metrics.next_chunk(seconds_between(*last_chunk_, now));
  } else {
    observers_.metrics.first_token(seconds_between(received_, now));
  }
  last_chunk_ = now;
}

void CallRecord::complete(const Completion& completion) {
  observers_.metrics.answered(completion);
  if (!completion_) {
    completion_ = completion;
    return;
  }
  completion_->completion_tokens += completion.completion_tokens;
  add(completion.timings, completion_->timings);
  if (completion.finish_reason == FinishReason::cancelled) {
    completion_->finish_reason = FinishReason::cancelled;
  }
}

void CallRecord::end(const absl::Status& status) {
  const auto now = Clock::now();
  absl::StatusCode code = status.code();
  if (status.ok() && completion_ && completion_->finish_reason == FinishReason::cancelled) {
    code = absl::StatusCode::kCancelled;
  }
  // By the client's clock: on its way here a timeout is rounded up, by a hundredth at most.
  if (code == absl::StatusCode::kCancelled && now - received_ >= timeout_ - timeout_ / 100) {
    code = absl::StatusCode::kDeadlineExceeded;
  }
  RequestEnd line{.request_id = request_id_,
                  .code = code,
                  .completion_tokens = num_tokens_,
                  .ms = seconds_between(received_, now) * 1e3};
  if (completion_) {
    line.prompt_tokens = completion_->prompt_tokens;
    line.completion_tokens = completion_->completion_tokens;
    const Timings& timings = completion_->timings;
    if (line.completion_tokens > 0) {  // else it may have been cancelled while it waited
      observers_.service_rate.completed(timings.total_ms - timings.queue_ms);
    }
  }
  if (observers_.trace != nullptr) {
    observers_.trace->request(request_id_, now, code,
                              completion_.value_or(Completion{.timings = {.total_ms = line.ms}}));
  }
  if (!status.ok()) {
    observers_.metrics.failed(code);
  } else if (completion_) {
    observers_.metrics.finished(*completion_);
  }
  observers_.log.end(line);
}

std::string new_request_id() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return absl::StrFormat("%016x", generator());
}

}  // namespace outrider
