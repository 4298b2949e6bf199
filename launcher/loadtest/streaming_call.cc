// See streaming_call.h.
#include "launcher/loadtest/streaming_call.h"

#include "launcher/client.h"

namespace outrider {

void StreamingCall::send(v1::GenerationService::Stub& stub, double timeout_s) {
  context_.set_deadline(std::chrono::system_clock::now() +
                        std::chrono::microseconds(static_cast<int64_t>(timeout_s * 1e6)));
  record_.sent_s = seconds_since(start_, LoadClock::now());
  stub.async()->Generate(&context_, &request_, this);
  StartRead(&response_);
  StartCall();
}

void StreamingCall::cancel() {
  cancelled_ = true;
  context_.TryCancel();
}

void StreamingCall::OnReadDone(bool ok) {
  if (!ok) return;
  const double now_s = seconds_since(start_, LoadClock::now());
  if (response_.has_chunk()) take(response_.chunk(), now_s);
  if (response_.has_complete()) take(response_.complete(), now_s);
  StartRead(&response_);
}

void StreamingCall::take(const v1::Chunk& chunk, double now_s) {
  if (chunk.token_ids().empty()) return;
  record_.chunks.push_back({now_s, chunk.token_ids_size()});
  record_.token_ids.insert(record_.token_ids.end(), chunk.token_ids().begin(),
                           chunk.token_ids().end());
  tokens_ += chunk.token_ids_size();
}

void StreamingCall::take(const v1::Complete& complete, double now_s) {
  record_.end_s = now_s;
  completion_tokens_ = complete.completion_tokens();
  record_.stopped = complete.finish_reason() == v1::FINISH_REASON_STOP;
  record_.prompt_tokens = complete.prompt_tokens();
  record_.cached_tokens = complete.cached_tokens();
  record_.queue_ms = complete.timings().queue_ms();
  const v1::SpeculationStats& speculation = complete.speculation();
  record_.num_spec_steps = speculation.num_spec_steps();
  record_.num_draft_tokens = speculation.num_draft_tokens();
  record_.num_accepted_draft_tokens = speculation.num_accepted_draft_tokens();
  record_.num_alternative_draft_tokens = speculation.num_alternative_draft_tokens();
  record_.num_accepted_alternatives = speculation.num_accepted_alternatives();
  record_.mean_acceptance_length = speculation.mean_acceptance_length();
  record_.mode = speculation.mode();
  record_.drafter = speculation.drafter();
}

void StreamingCall::OnDone(const grpc::Status& status) {
  record_.status = status_name(status.error_code());
  record_.error = status.error_message();
  record_.cancelled = !status.ok() && cancelled_;
  const auto received = static_cast<int64_t>(record_.token_ids.size());
  if (status.ok() && completion_tokens_ != received) {
    record_.status = status_name(grpc::StatusCode::DATA_LOSS);
    record_.error = completion_tokens_ < 0
                        ? "the stream ended well, but without a complete"
                        : "complete says " + std::to_string(completion_tokens_) +
                              " tokens, the chunks held " + std::to_string(received);
  }
  if (!record_.ok()) record_.end_s = seconds_since(start_, LoadClock::now());
  on_done_(this);
}

}  // namespace outrider
