// What a client asks of the engine and what it hears back.
#pragma once

#include <absl/status/status.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/verify_types.h"
#include "spec/drafter_kind.h"
#include "spec/logit_editor.h"
#include "spec/speedup.h"

namespace outrider {

// How an answer was made.
enum class SpeculationMode : int32_t { greedy, rejection, coupled, off };

struct SamplingParams {
  float temperature = 1.0f;             // below 1e-5: greedy
  float top_p = 1.0f;                   // (0, 1]; 1: off
  int32_t top_k = 0;                    // 0: off
  float min_p = 0.0f;                   // [0, 1]; 0: off
  float repetition_penalty = 1.0f;      // above 0; 1: off
  float presence_penalty = 0.0f;        // [-2, 2]; 0: off
  float frequency_penalty = 0.0f;       // [-2, 2]; 0: off
  std::map<int32_t, float> logit_bias;  // by token
  std::optional<uint64_t> seed;
  std::optional<int32_t> max_tokens;  // unset: what fits
  int32_t min_tokens = 0;             // before EOS or one of stop_token_ids may come
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t n = 1;                           // answers to the one prompt
  std::optional<int32_t> logprobs;         // of each token of an answer, and the best so many
  std::optional<int32_t> prompt_logprobs;  // the same of the prompt's tokens but the first
};

struct SpeculationParams {
  bool off = false;                               // K = 0 whatever the server's policy
  std::optional<VerifyMode> mode;                 // rejection or coupled; unset: see verify_mode
  float lenience = 1.0f;                          // (0, 1]; 1: exact
  std::optional<std::string> drafter;             // unset: the server's default
  std::optional<int32_t> num_speculative_tokens;  // exactly this K; unset: the server's policy
  std::optional<int32_t> num_alternatives;  // to the first of these; at most, where K is unset
  std::optional<double> tpot_slo_ms;        // that a step shall take at most; unset: the server's
};

struct Request {
  std::string request_id;
  std::vector<int32_t> prompt;   // token ids
  std::vector<int32_t> emitted;  // of the answer, from a call that failed: it goes on behind them
  int32_t priority = 0;          // higher ones are admitted first; waiting makes up for it
  uint64_t tenant = 0;           // requests of one tenant alone share pages of their prompts
  bool stream_stats = false;     // speculation statistics in each chunk
  SamplingParams sampling;
  SpeculationParams speculation;
  std::chrono::steady_clock::time_point received = std::chrono::steady_clock::now();
};

// How a request's tokens are chosen. Sampled ones without a mode of their own are `coupled` where a
// seed asks for answers that repeat, or where nothing is drafted at all: then the seed that the
// response tells repeats them too.
VerifyMode verify_mode(const Request& request);

struct Logprob {
  int32_t token = 0;
  float logprob = 0;  // under the model itself: before all processors
};

// One token and the best ones in its place.
struct TokenLogprobs {
  Logprob token;
  std::vector<Logprob> top;  // best first
};

// Where a token of an answer comes from.
enum class TokenOrigin : uint8_t {
  drafted,    // and accepted
  corrected,  // the target's own, in place of a drafted token that was refused
  bonus,      // the target's own, behind drafted tokens all accepted, or behind an alternative
  plain,      // the target's own, where nothing was drafted
};

enum class FinishReason { stop, length, cancelled };

struct Timings {          // milliseconds
  double queue_ms = 0;    // received until its first step began
  double prefill_ms = 0;  // first step began until the first token
  double decode_ms = 0;   // first token until the last
  double total_ms = 0;
  double ttft_ms = 0;  // received until the first token
};

struct SpeculationStats {
  DrafterKind drafter = DrafterKind::none;
  int64_t num_spec_steps = 0;  // steps that drafted at least one token
  int64_t num_decode_steps = 0;
  int64_t num_decoded_tokens = 0;  // emitted by them
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_draft_tokens = 0;
  int64_t num_copied_draft_tokens = 0;  // of num_draft_tokens, by a copy drafter
  // Of num_draft_tokens, beside a first one; and of num_accepted_draft_tokens, in its place.
  int64_t num_alternative_draft_tokens = 0, num_accepted_alternatives = 0;
  std::array<int64_t, kMaxDraftTokens> drafted_per_position{};
  std::array<int64_t, kMaxDraftTokens> accepted_per_position{};
  double alpha_sum = 0;
  double shift_sum = 0;
  int64_t alpha_rows = 0;
  SpeedupRecord speedup;
  // Of the drafted tokens but alternatives, which take no round of their own: what each cost in
  // plain steps of one sequence. Unset: not measured.
  std::optional<double> draft_cost_sum;
  double tpot_slo_ms = 0;  // the objective; 0: none
  bool tpot_slo_missed = false;

  double mean_acceptance_length() const;  // emitted tokens a decode step
  double draft_acceptance_rate() const;   // accepted over drafted; 0 where nothing was drafted
  // Measured over verified rows, of drafts that were copied too; 0 where there were none.
  double alpha() const;
  std::optional<double> draft_cost() const;  // c: in the mean; unset: not measured, or none drafted
  double lenience_shift() const;  // of their distributions' total variation; 0 where not known
};

// What a drafter has done since the start.
struct DrafterReport {
  int64_t num_drafts = 0;  // steps of a sequence that drafted at least one token
  int64_t num_draft_tokens = 0, num_accepted_draft_tokens = 0;
  int64_t num_alternative_draft_tokens = 0, num_accepted_alternatives = 0;  // of them
  double alpha = 0;  // of exact and lenient answers alike
  // Unset: not measured. The cost is that of a round, drawn greedily.
  std::optional<double> draft_cost, predicted_speedup, measured_speedup;
  double budget_ms = 0;  // that it may lose yet
};

struct Completion {
  int32_t index = 0;  // which of the n answers
  bool last = true;   // of the request's: nothing follows
  FinishReason finish_reason = FinishReason::stop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  Timings timings;
  SpeculationStats speculation;
  SpeculationMode mode = SpeculationMode::greedy;
  float lenience = 1.0f;
  uint64_t seed = 0;  // used, or drawn by the server
  std::string numerics_fingerprint;
};

struct Chunk {
  int32_t index = 0;  // which of the n answers
  std::string
      text;  // whole UTF-8; may be empty while a character or a possible stop string is held
  std::vector<int32_t> token_ids;              // a closing EOS included
  std::vector<TokenOrigin> origins;            // of each token
  std::vector<int32_t> text_ends;              // for each token: bytes of `text` up to its end
  std::vector<TokenLogprobs> logprobs;         // for each token, where they were asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // of the prompt's next tokens, likewise
  std::optional<Completion> so_far;            // where stream_stats was set
};

// Where a request's tokens go. Called by one thread, the engine's delivery: implementations only
// enqueue and never block. on_complete comes once for each of the n answers; the last one, or
// on_error, ends the request.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void on_chunk(Chunk chunk) = 0;
  virtual void on_complete(Completion completion) = 0;
  virtual void on_error(absl::Status status) = 0;
  // The client is gone or its deadline has passed: the engine drops the request at the next step
  // and calls on_complete with FinishReason::cancelled. Called by the engine's thread too.
  virtual bool cancelled() const = 0;
};

// What requests are checked against.
struct Limits {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // prompt and answer of one request, in tokens
  std::vector<int32_t> eos_token_ids;
  int32_t max_draft_tokens = kMaxDraftTokens;
  int32_t max_alternatives = kMaxAlternatives;  // where a request that leaves K open gives none
  int32_t max_stop_strings = 16;
  int32_t max_stop_token_ids = kMaxStopTokenIds;
  int32_t max_logit_bias = kMaxLogitBias;
  int32_t max_stop_bytes = 256;  // of one stop string
  int32_t max_choices = 16;      // n
  int32_t max_logprobs = 20;
  int32_t max_priority = 100;         // and least, negated
  int64_t max_kv_tokens = INT64_MAX;  // n answers of prompt, max_tokens and a step's rows
  std::vector<DrafterKind> drafters;  // at hand
  DrafterKind default_drafter = DrafterKind::none;
};

// InvalidArgument naming the field, what was expected and what was found ("sampling_params.top_p
// is 1.5; expected a number in (0, 1]"), or OK.
absl::Status validate(const Request& request, const Limits& limits);
// The same for all but the prompt, and max_tokens which depends on it.
absl::Status validate_parameters(const Request& request, const Limits& limits);

}  // namespace outrider
