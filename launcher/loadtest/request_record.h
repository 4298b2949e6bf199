// RequestRecord: all that a load test keeps of one request. Nothing is summed up before the end.
// LoadResult: those of one load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

// Times are seconds since the start of the test.
struct RequestRecord {
  int64_t index = 0;     // in the order of sending
  int64_t question = 0;  // those of one question ask the same at the same point of their plan
  int prompt = 0;        // its index
  int32_t max_tokens = 0;

  double due_s = 0;   // when it was meant to be sent: latency counts from here
  double sent_s = 0;  // when it was
  double end_s = 0;   // its last message, or its failure

  // A gRPC status by name. DATA_LOSS too where a call ended well and its answer is not whole.
  std::string status = "OK";
  std::string error;       // the status's message
  bool cancelled = false;  // by the test itself, which was told to stop

  struct Chunk {
    double at_s;
    int num_tokens;  // at least 1
  };
  std::vector<Chunk> chunks;  // those with tokens
  std::vector<int32_t> token_ids;
  bool stopped = false;  // at its own end, not at max_tokens

  // As the server said at the end.
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of them, in the prefix cache
  double queue_ms = 0;
  int64_t num_spec_steps = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_draft_tokens = 0;
  // Of the drafted ones, beside a first one; and of the accepted ones, in its place.
  int64_t num_alternative_draft_tokens = 0, num_accepted_alternatives = 0;
  double mean_acceptance_length = 0;
  std::string mode, drafter;  // of its speculation

  bool ok() const { return status == "OK"; }
  // As a server answers that has more to do than it can.
  bool overloaded() const {
    return status == "RESOURCE_EXHAUSTED" || status == "DEADLINE_EXCEEDED";
  }
};

// What one load brought.
struct LoadResult {
  std::vector<RequestRecord> records;  // in the order of sending
  // Until when the load was on: the plan's end; the last answer, where the plan is a number of
  // requests; or when the test was cut short.
  double load_end_s = 0;
  bool gave_up = false;      // nothing had succeeded, so no more was sent
  bool interrupted = false;  // it was told to stop
};

}  // namespace outrider
