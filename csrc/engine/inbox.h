// Inbox: requests on their way from many threads to the engine's, without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/digest.h"
#include "engine/output_stream.h"
#include "engine/request.h"
#include "engine/request_settings.h"
#include "engine/token_end.h"

namespace outrider {

struct Submission {
  Request request;
  RequestSettings settings;
  std::shared_ptr<RequestSink> sink;
  std::optional<OutputStream> output;  // each answer's at its start: behind emitted tokens
  std::optional<TokenEnd> end;         // likewise
  Digest128 digest;                    // the quarantine's; unset where there is none

  Submission* next = nullptr;  // the inbox's
};

// A stack that any thread pushes to and the engine's takes whole.
class Inbox {
 public:
  using Submissions = std::vector<std::unique_ptr<Submission>>;

  Inbox() = default;
  ~Inbox() { close(); }
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // False once it is closed: then the submission stays with the caller.
  bool push(std::unique_ptr<Submission>& submission);
  // What was pushed since the last call, in order.
  Submissions take();
  // The same, for the last time.
  Submissions close();

  int64_t num_answers() const { return num_answers_; }  // n of each request
  int64_t num_tokens() const { return num_tokens_; }    // of their prompts and emitted_token_ids

 private:
  static Submission* closed();  // the head once nothing is taken any more
  Submissions unwind(Submission* newest);

  std::atomic<Submission*> head_ = nullptr;
  std::atomic<int64_t> num_answers_ = 0, num_tokens_ = 0;
};

}  // namespace outrider
