// See calls.h.
#include "server/calls.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/response_conversion.h"
#include "server/status.h"

namespace outrider {

void CallRegistry::add(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.insert(call);
}

void CallRegistry::remove(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
  if (call->tenant_ && --num_admitted_ == 0) none_admitted_.notify_all();
}

void CallRegistry::fail_all(const absl::Status& status) {
  std::vector<std::shared_ptr<Call>> calls;
  {
    const std::lock_guard lock(mutex_);
    for (Call* call : calls_) calls.push_back(call->shared_from_this());
  }
  for (const auto& call : calls) call->on_error(status);
}

bool CallRegistry::admit(Call* call, uint64_t tenant, int64_t max) {
  const std::lock_guard lock(mutex_);
  const auto counts = [&](const Call* other) {
    return other->tenant_ == tenant && other->under_way_;
  };
  if (max > 0 && std::count_if(calls_.begin(), calls_.end(), counts) >= max) return false;
  call->tenant_ = tenant;
  ++num_admitted_;
  return true;
}

int CallRegistry::abort(const std::string& request_id, uint64_t tenant) {
  const std::lock_guard lock(mutex_);
  int aborted = 0;
  for (Call* call : calls_) {
    if (call->ended_ || !call->under_way_) continue;  // nothing is left to end
    if (call->request_id() != request_id || call->tenant_ != tenant) continue;
    call->cancel();
    ++aborted;
  }
  return aborted;
}

bool CallRegistry::wait_for_admitted(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return none_admitted_.wait_for(lock, timeout, [this] { return num_admitted_ == 0; });
}

void Call::hold() {
  self_ = shared_from_this();
  registry_.add(this);
}

void Call::released() {
  cancel();
  {
    const std::lock_guard lock(mutex_);
    released_ = true;
    collect_timer_.reset();
  }
  registry_.remove(this);
  self_.reset();
}

void Call::start_collect_timer() {
  was_taken();
  await_taking(limits_.collect_timeout);
}

void Call::await_taking(std::chrono::steady_clock::duration time) {
  if (released_) return;
  collect_timer_ = std::make_unique<grpc::Alarm>();  // one goes off once
  collect_timer_->Set(std::chrono::system_clock::now() + time,
                      [weak = weak_from_this()](bool expired) {
                        const auto call = weak.lock();
                        if (!expired || call == nullptr) return;
                        const std::lock_guard lock(call->mutex_);
                        call->give_up_unless_taken();
                      });
}

void Call::give_up_unless_taken() {
  if (released_) return;
  const auto left = last_taken_ + limits_.collect_timeout - std::chrono::steady_clock::now();
  if (left > std::chrono::steady_clock::duration::zero()) {
    await_taking(left);
  } else {
    context_->TryCancel();
  }
}

void StreamCall::push(v1::GenerateResponse response) {
  if (end_.has_value()) return;
  undelivered_bytes_ += static_cast<int64_t>(response.ByteSizeLong());
  queue_.push_back(std::move(response));
  if (undelivered_bytes_ <= limits_.max_undelivered_bytes) return;
  queue_.clear();
  cancelled_ = true;
  end_ = absl::ResourceExhaustedError("the client does not read its answer; generation was ended");
  has_ended(*end_);
  start_collect_timer();
}

void StreamCall::on_chunk(Chunk chunk) {
  {
    const std::lock_guard lock(mutex_);
    record_.chunk(chunk);
    v1::GenerateResponse response;
    *response.mutable_chunk() = to_proto(chunk);
    push(std::move(response));
  }
  advance();
}

void StreamCall::on_complete(Completion completion) {
  {
    const std::lock_guard lock(mutex_);
    record_.complete(completion);
    v1::GenerateResponse response;
    *response.mutable_complete() = to_proto(completion);
    push(std::move(response));
  }
  if (completion.last) {
    end(absl::OkStatus());
  } else {
    advance();
  }
}

void StreamCall::end(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (end_.has_value()) return;
    has_ended(status);
    end_ = std::move(status);
    start_collect_timer();
  }
  advance();
}

void StreamCall::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    was_taken();
    undelivered_bytes_ -= static_cast<int64_t>(current_.ByteSizeLong());
    if (!ok) {
      cancel();
      queue_.clear();
    }
  }
  advance();
}

// gRPC is called without mutex_: one write is under way at most, and none starts after Finish().
void StreamCall::advance() {
  std::unique_lock lock(mutex_);
  if (writing_ || finished_) return;
  if (!queue_.empty()) {
    current_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    lock.unlock();
    StartWrite(&current_);
  } else if (end_.has_value()) {
    finished_ = true;
    under_way_ = false;  // before the client can know
    const grpc::Status status = to_grpc(*end_);
    lock.unlock();
    Finish(status);
  }
}

void UnaryCall::on_chunk(Chunk chunk) {
  const std::lock_guard lock(mutex_);
  if (ended_ || too_large_) return;
  record_.chunk(chunk);
  chunk.so_far.reset();  // there is no place for it
  v1::GenerateOnceResponse& response = answer(chunk.index);
  const v1::Chunk proto = to_proto(chunk);
  answer_bytes_ += static_cast<int64_t>(proto.ByteSizeLong());
  if (answer_bytes_ > limits_.max_answer_bytes) {
    too_large_ = true;
    cancel();
    return;
  }
  response.mutable_text()->append(chunk.text);
  response.mutable_token_ids()->MergeFrom(proto.token_ids());
  response.mutable_origins()->MergeFrom(proto.origins());
  response.mutable_logprobs()->MergeFrom(proto.logprobs());
  response.mutable_prompt_logprobs()->MergeFrom(proto.prompt_logprobs());
}

v1::GenerateOnceResponse& UnaryCall::answer(int index) {
  while (response_->others_size() < index) response_->add_others();
  return index == 0 ? *response_ : *response_->mutable_others(index - 1);
}

void UnaryCall::on_complete(Completion completion) {
  {
    const std::lock_guard lock(mutex_);
    record_.complete(completion);
    if (!ended_) *answer(completion.index).mutable_complete() = to_proto(completion);
  }
  if (!completion.last) return;
  end(too_large_ ? absl::ResourceExhaustedError(absl::StrCat("the answer has more than ",
                                                             limits_.max_answer_bytes,
                                                             " bytes; Generate streams it"))
                 : absl::OkStatus());
}

void UnaryCall::end(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    has_ended(status);
    under_way_ = false;  // before the client can know
    start_collect_timer();
  }
  Finish(to_grpc(status));
}

}  // namespace outrider
