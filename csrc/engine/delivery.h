// Delivery: the thread between the engine's, which makes tokens, and the clients' sinks. It
// detokenises, cuts at stop strings and hands on, so that none of that delays a step.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/digest.h"
#include "engine/output_stream.h"
#include "engine/request.h"
#include "spec/acceptance.h"

namespace outrider {

using EngineClock = std::chrono::steady_clock;

// What the n answers of one request share.
struct RequestProgress {
  std::shared_ptr<RequestSink> sink;
  int32_t choices_left = 1;        // delivery's
  std::atomic<bool> over = false;  // the sink has heard the last of it

  // The engine's.
  int32_t sequences_left = 0;
  bool begun = false;       // one of the answers was admitted
  bool non_finite = false;  // one of them met a NaN
  Digest128 digest;         // the quarantine's, where there is one
};

// One answer of a request. Made by the engine, the delivery's from then on.
struct Answer {
  Answer(std::shared_ptr<RequestProgress> request, OutputStream output)
      : request(std::move(request)), output(std::move(output)) {}

  std::shared_ptr<RequestProgress> request;
  OutputStream output;
  Completion completion;  // filled as it goes
  bool stream_stats = false;
  EngineClock::time_point received;
  EngineClock::time_point started, first_token, last_token;
  bool over = false;
};

// What a step, or the end of it all, brought for one answer.
struct Delivered {
  std::shared_ptr<Answer> answer;
  EngineClock::time_point at = EngineClock::now();
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<int32_t> tokens;          // the accepted drafts, then the extra token; up to the end
  std::optional<FinishReason> end;      // with the last of them, by the tokens alone
  bool last = false;                    // the answer ends with them, by that or by its text
  std::vector<TokenLogprobs> logprobs;  // for each token, where wanted
  bool copied = false;                  // by a copy drafter, what was drafted
  std::optional<double> draft_cost;     // c, of what was drafted; unset: not measured
  VerifiedDrafts drafts;
  TimedStep timed;
  bool finished_already = false;  // a resumed answer that was complete
  bool cancelled = false;
  std::optional<absl::Status> error;
};

class Delivery {
 public:
  Delivery();
  // Hands on whatever there is, then ends.
  ~Delivery();
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // In order, never waiting for a client. Empties `items`.
  void push(std::vector<Delivered>& items);
  // Returns once everything that was pushed has been handed on.
  void drain();

  // Totals since the start; thread-safe.
  struct Totals {
    std::atomic<int64_t> num_requests_finished = 0, num_requests_failed = 0;
    std::atomic<int64_t> num_draft_tokens = 0, num_accepted_draft_tokens = 0;
    std::atomic<int64_t> num_completion_tokens = 0;
  };
  const Totals& totals() const { return totals_; }

 private:
  void run();
  void deliver(Delivered& item);
  // What the answer has to send, where there is anything.
  void send(Answer& answer, std::vector<TokenLogprobs> prompt_logprobs);
  void count(Answer& answer, const Delivered& item, int num_emitted);
  void complete(Answer& answer, FinishReason reason, EngineClock::time_point at);

  Totals totals_;
  std::mutex mutex_;  // guards what stands behind it; held for moments only
  std::condition_variable wake_, idle_;
  std::vector<Delivered> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace outrider
