// LogitEditor: bias, penalties and min_tokens of the sequences that ask for them. Keeps on the
// backend what the edits need to know of each slot's tokens, and gathers the rows to edit. A step
// in which nobody asks enqueues nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kernels/processors.h"
#include "spec/staged.h"

namespace outrider {

constexpr int32_t kMaxLogitBias = 300;  // tokens that a request may bias
constexpr int32_t kMaxStopTokenIds = 64;

// That a request may list at once, for a model with so many end-of-sequence tokens.
constexpr int64_t max_listed_tokens(size_t num_eos_tokens) {
  return kMaxLogitBias + kMaxStopTokenIds + static_cast<int64_t>(num_eos_tokens);
}

// What a request asks to be done to logits before temperature and filters: kernels/processors.h.
struct LogitRules {
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t min_tokens = 0;  // of the output, before one that ends the answer may come
  // Biased, or ending the answer where there are min_tokens; each token once.
  std::vector<ListedToken> listed;

  // Whether they change any logit behind num_output tokens of output, or later on.
  bool matter_from(int64_t num_output) const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0 ||
           std::any_of(listed.begin(), listed.end(), [&](const ListedToken& l) {
             return l.bias != 0 || (l.ends != 0 && num_output < min_tokens);
           });
  }
  // How many of the proposed tokens, from the front, may come behind num_output tokens of output: a
  // copy drafter proposes none that is masked, or as good as banned.
  size_t count_allowed(std::span<const int32_t> proposed, int64_t num_output) const;
};

class LogitEditor {
 public:
  // max_listed: of one sequence. max_rows: that a batch edits; max_step_rows: all batches of a
  // step.
  LogitEditor(Backend& backend, int64_t vocab_size, int64_t num_slots, int64_t max_listed,
              int64_t max_rows, int64_t max_step_rows);

  // What the memory above comes to, in bytes of the backend.
  static int64_t bytes(int64_t vocab_size, int64_t num_slots, int64_t max_listed, int64_t max_rows);

  // A new sequence holds the slot: its prompt, and what it emitted before.
  void admit(int64_t slot, const LogitRules& rules, std::span<const int32_t> tokens,
             int64_t num_prompt_tokens);
  bool edits(int64_t slot) const { return slots_[slot].edits; }
  // These came behind the slot's tokens.
  void commit(int64_t slot, std::span<const int32_t> tokens);

  // Nothing of the step before is in flight. Tells the backend what came since.
  void begin_step(Stream& stream);

  // Rows that are edited by one operation.
  struct Batch {
    int64_t count = 0, largest_size = 0;
  };
  // Adds a row of the slot's logits to the batch that is gathered: of the tokens [first_token,
  // first_token + size), behind `drafted`, on the backend, [num_drafted]. from, to: as in
  // LogitEdit.
  void add(int64_t slot, const int32_t* drafted, int64_t num_drafted, const float* from, float* to,
           int64_t first_token, int64_t size);
  // Sends the rows so far to the backend, and begins a new batch. Where there are any, they become
  // as many as the pass has that they are of: it is replayed for any number of them.
  Batch upload(int64_t rows_of_pass, Stream& stream);
  // Edits them, before the next upload; a batch's numbers are part of a replayed pass's key.
  void enqueue(const Batch& batch, Stream& stream);

 private:
  struct Slot {
    LogitRules rules;
    int64_t num_output = 0;
    bool edits = false;
    bool fresh = false;  // the backend knows nothing of it yet
  };

  Backend& backend_;
  int64_t vocab_size_, max_listed_, max_rows_, max_step_rows_;
  std::vector<Slot> slots_;
  Staged<TokenState> tokens_;     // [slots, vocab_size]
  Staged<ListedToken> listed_;    // [slots, max_listed]
  Staged<TokenState> changed_;    // [slots * (kMaxDraftTokens + 1)]: what came of changes_ …
  Staged<TokenCopy> copies_;      // … and where it goes
  Staged<LogitEdit> edits_;       // [max_rows]; on the host [max_step_rows]
  std::vector<int64_t> changes_;  // elements of tokens_ that the backend does not know yet
  int64_t first_ = 0;             // on the host, of the batch that is gathered …
  Batch batch_;                   // … and it
};

}  // namespace outrider
