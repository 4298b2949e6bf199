// See call_record.h.
#include "server/call_record.h"

#include <absl/strings/str_format.h>

#include <random>

#include "engine/metrics.h"

namespace outrider {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
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
  if (completion_) {
    completion_->completion_tokens += completion.completion_tokens;
  } else {
    completion_ = completion;
  }
}

void CallRecord::end(const absl::Status& status) {
  const auto now = Clock::now();
  RequestEnd line{.request_id = request_id_,
                  .code = status.code(),
                  .completion_tokens = num_tokens_,
                  .ms = seconds_between(received_, now) * 1e3};
  if (completion_) {
    if (completion_->finish_reason == FinishReason::cancelled) {
      line.code = absl::StatusCode::kCancelled;
    }
    line.prompt_tokens = completion_->prompt_tokens;
    line.completion_tokens = completion_->completion_tokens;
    observers_.service_rate.completed(now);
  }
  if (observers_.trace != nullptr) {
    observers_.trace->request(request_id_, now, line.code,
                              completion_.value_or(Completion{.timings = {.total_ms = line.ms}}));
  }
  if (!status.ok()) {
    observers_.metrics.failed(status.code());
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
