#include "engine/executor.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>
#include <numeric>

#include "core/digest.h"
#include "core/float_environment.h"
#include "core/version.h"
#include "engine/kv_pool.h"
#include "engine/page_pool.h"
#include "model/chat_template.h"
#include "model/checkpoint_hash.h"
#include "model/shard.h"
#include "model/weights.h"

namespace outrider {

namespace {

constexpr int kCostRounds = 6;
// Up to where each number of rows is measured: kernels keep fewer rows in registers than they have.
constexpr int64_t kEachRow = 9;
// Which take so long that they are measured in few rounds, of which the first may be cold; and as
// steps with prompts are computed, which have so many.
constexpr int64_t kManyCostRows = 64;
constexpr int kManyRowsRounds = 2;
constexpr double kUnmeasured = std::numeric_limits<double>::infinity();
// With which the cost of a long context is measured.
constexpr int64_t kCostRows = 8;
constexpr int64_t kCostContext = 4096;

std::function<void(double)> progress_of(const EngineOptions& options, const std::string& what) {
  if (!options.progress) return {};
  return [&options, what](double done) { options.progress(what, done); };
}

// A step that throws is over, too: whoever then ends in an orderly way shall not be taken for hung.
class ReportedStep {
 public:
  // progress: null where nobody is told.
  ReportedStep(StepProgress* progress, int64_t rows) : progress_(progress) {
    if (progress_ != nullptr) progress_->begin_step(rows);
  }
  ~ReportedStep() {
    if (progress_ != nullptr) progress_->end_step();
  }
  ReportedStep(const ReportedStep&) = delete;
  ReportedStep& operator=(const ReportedStep&) = delete;

 private:
  StepProgress* progress_;
};

uint64_t chain(std::span<const int32_t> tokens, uint64_t seed) {
  return digest(tokens.data(), tokens.size_bytes(), seed);
}

// A trimmed head is a guess of which tokens come: a target must know them all.
void check_whole_head(const std::filesystem::path& directory, const ModelConfig& config) {
  if (config.draft_token_ids.empty()) return;
  throw Error((directory / "config.json").string() +
              ": draft_token_ids is set; expected a whole LM head (only --draft may be trimmed)");
}

// What the options ask of the model, whose weights nobody has read yet.
void check_options(const EngineOptions& options, const ModelConfig& config, int num_ranks) {
  check_whole_head(options.model, config);
  Shard::of(config, 0, num_ranks);
  num_kv_pages(options, config, num_ranks);
}

EngineOptions checked(EngineOptions options, int num_ranks) {
  check_options(options, ModelConfig::load(options.model), num_ranks);
  if (options.drafter) check_drafter(*options.drafter, options.drafter_files());
  return options;
}

void check_tokenizer(const std::filesystem::path& directory, const Tokenizer& tokenizer,
                     const ModelConfig& config) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw Error(directory.string() + "/tokenizer.json: holds token " +
                std::to_string(tokenizer.vocab_size() - 1) +
                ", expected only tokens below config.json's vocab_size, " +
                std::to_string(config.vocab_size));
  }
}

}  // namespace

void check_files(const EngineOptions& options, int num_ranks) {
  const ModelConfig config = ModelConfig::load(options.model);
  check_options(options, config, num_ranks);
  check_tensors(Checkpoint(options.model), config);
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  check_tokenizer(options.model, tokenizer, config);
  ChatTemplate::load(options.model);
  if (options.draft) check_draft_model(*options.draft, config, tokenizer);
}

Executor::Executor(EngineOptions options, Backend& backend, Communicator& communicator)
    : options_(checked(std::move(options), communicator.size())),
      backend_(backend),
      num_ranks_(communicator.size()),
      stream_(backend.make_stream()),
      tokenizer_(Tokenizer::load(options_.model)),
      target_(options_.model, backend, communicator, options_.max_rows, options_.max_positions,
              progress_of(options_, "loading model")),
      max_positions_(longest_context(target_.config(), options_.max_positions)),
      cache_(target_.make_kv_cache(num_kv_pages(options_, target_.config(), num_ranks_),
                                   options_.max_sequences)),
      model_hash_(options_.model_hash.empty() ? checkpoint_hash(options_.model)
                                              : options_.model_hash),
      tokens_hash_(tokens_hash(options_.model)),
      drafters_(options_.drafter_files(),
                {options_.model, model_hash_, target_.config(), tokenizer_},
                {cache_.num_pages(), options_.max_sequences, options_.max_rows}, backend,
                communicator, progress_of(options_, "loading draft")),
      step_(backend, communicator, target_, cache_, options_.max_sequences, options_.max_rows),
      slots_(options_.max_sequences),
      token_digests_(options_.max_sequences, 0) {
  check_tokenizer(options_.model, tokenizer_, target_.config());
  target_.keep_states(drafters_.aux_layers());
  for (SequenceState& slot : slots_) slot.tokens.reserve(max_positions_ + kMaxDraftTokens + 1);
  work_.reserve(slots_.size());
  if (options_.prefill_beside == 0 || options_.lookahead.kind == LookaheadPolicy::Kind::adaptive) {
    if (options_.progress) options_.progress("measuring steps", 0);
    const FloatEnvironment float_environment;
    tables_.target = measure_step_costs();
    backend_.forget_replayed();  // nothing else replays what was measured
    for (const DrafterKind kind : drafters()) {
      measure_draft_costs(kind);
    }
    measure_feed_costs();
  }
}

int64_t Executor::num_draft_pages() const {
  ModelDrafter* const model = drafters_.model();
  return model == nullptr ? 0 : model->cache().num_pages();
}

int64_t Executor::draft_weight_bytes() const {
  const LogitDrafter* const drafter = drafters_.find(default_drafter());
  return drafter == nullptr ? 0 : drafter->weight_bytes();
}

// Of a pass over rows of slot 0 from `position` on, whatever they and the pages hold: nobody reads
// either.
double Executor::measure_ms(int64_t rows, int64_t num_logits, int64_t position) {
  return 1e3 * step_.measure_target(rows, num_logits, position, rows < kManyCostRows, stream_);
}

// The ranks take every pass together, so what is measured never decides what comes next.
StepCosts Executor::measure_step_costs() {
  std::vector<int32_t> pages(std::min(
      {cache_.num_pages(), cache_.max_pages_per_slot(), PagePool::pages_for(kCostContext)}));
  std::iota(pages.begin(), pages.end(), 0);
  cache_.set_pages(0, 0, pages, stream_);
  const int64_t room = std::min(cache_.capacity(0), max_positions_);  // pages may reach further
  const int64_t far = room - kCostRows;
  const int64_t most = std::min(
      {options_.max_rows, std::max(options_.prefill_chunk, kMaxDraftTokens + int64_t{2}), room});
  StepCosts costs;
  const auto pads_behind = [&](int64_t rows) {
    return backend_.padded_rows(rows) == rows && backend_.padded_rows(rows + 1) > rows + 1;
  };
  for (int64_t rows = 1; rows <= most; ++rows) {
    const bool at_a_jump =
        rows <= kManyCostRows + 1 && (pads_behind(rows) || pads_behind(rows - 1));
    if (rows <= kEachRow || rows == 12 || rows == 17 ||
        std::has_single_bit(static_cast<uint64_t>(rows)) || at_a_jump) {
      costs.steps.push_back({rows, kUnmeasured});
    }
  }
  // Behind a long context: one row, and several.
  StepCosts::Point one{1, kUnmeasured}, several{std::min(kCostRows, most), kUnmeasured};
  double all_logits = kUnmeasured;  // of several rows
  // What rows take that are candidates for one position, but for the first: two candidates and
  // several, more than as many rows that are none; and the several by themselves, here and far
  // away.
  StepCosts::Point few_more{std::min<int64_t>(3, most), kUnmeasured}, more = several;
  StepCosts::Point candidates = several, far_candidates = several;
  // Noise only ever adds, and comes in bursts: the least of some rounds over all of them counts.
  for (int round = 0; round < kCostRounds; ++round) {
    const auto measure = [&](StepCosts::Point& point, int64_t position) {
      if (round >= kManyRowsRounds && point.rows >= kManyCostRows) return;
      point.ms = std::min(point.ms, measure_ms(point.rows, 1, position));
    };
    for (StepCosts::Point& point : costs.steps) measure(point, 0);
    const auto measure_candidates = [&](int64_t rows, int64_t position) {
      return 1e3 * step_.measure_alternatives(rows, position, stream_);
    };
    // Of passes side by side: what is found too dear here is never tried, and so never put right.
    const double few_ms = measure_ms(few_more.rows, few_more.rows, 0);
    few_more.ms = std::min(few_more.ms, measure_candidates(few_more.rows, 0) - few_ms);
    const double several_ms = measure_ms(several.rows, several.rows, 0);
    const double candidates_ms = measure_candidates(several.rows, 0);
    all_logits = std::min(all_logits, several_ms);
    candidates.ms = std::min(candidates.ms, candidates_ms);
    more.ms = std::min(more.ms, candidates_ms - several_ms);
    if (far <= 0) continue;
    far_candidates.ms = std::min(far_candidates.ms, measure_candidates(several.rows, far));
    measure(one, far);
    measure(several, far);
  }
  cache_.set_pages(0, 0, {}, stream_);
  costs.keep_rising();
  if (far > 0 && several.rows > 1) costs.set_context(one, several, far);
  if (several.rows > 1) {
    costs.ms_per_logit_row = std::max(0.0, all_logits - costs.rows_ms(several.rows)) /
                             static_cast<double>(several.rows - 1);
    if (far > 0) costs.set_segment_context(candidates, far_candidates, far);
    costs.set_alternatives(few_more, more);
  }
  return costs;
}

// Of a position, and of as many as a step may feed, of one slot; without a row to draw from.
void Executor::measure_feed_costs() {
  ModelDrafter* const model = drafters_.model();
  if (model == nullptr || options_.lookahead.kind != LookaheadPolicy::Kind::adaptive) return;
  KvCache& cache = model->cache();
  std::vector<int32_t> pages(std::min({cache.num_pages(), cache.max_pages_per_slot(),
                                       PagePool::pages_for(options_.prefill_chunk)}));
  std::iota(pages.begin(), pages.end(), 0);
  cache.set_pages(0, 0, pages, stream_);
  const int64_t most = std::min(
      {options_.prefill_chunk, cache.capacity(0), max_draft_positions(DrafterKind::model)});
  StepCosts costs{.steps = {{1, kUnmeasured}}};
  if (most > 1) costs.steps.push_back({most, kUnmeasured});
  for (int round = 0; round < kCostRounds; ++round) {
    for (StepCosts::Point& point : costs.steps) {
      if (round >= kManyRowsRounds && point.rows >= kManyCostRows) continue;
      point.ms = std::min(point.ms, 1e3 * step_.measure_feed(*model, point.rows, stream_));
    }
  }
  cache.set_pages(0, 0, {}, stream_);
  costs.keep_rising();
  const StepCosts::Point last = costs.steps.back();
  if (most == 1) costs.steps.push_back({2, 2 * last.ms});
  tables_.feed = std::move(costs);
}

// Of a round over so many sequences, which all ranks draft together.
void Executor::measure_draft_costs(DrafterKind kind) {
  LogitDrafter* const drafter = drafters_.find(kind);
  if (drafter == nullptr) return;
  const auto share_pages = [&](bool given) {
    if (kind != DrafterKind::model) return;
    KvCache& cache = drafters_.model()->cache();
    for (int64_t slot = 0; slot < options_.max_sequences; ++slot) {
      const auto page = static_cast<int32_t>(slot % cache.num_pages());
      cache.set_pages(slot, 0, std::span(&page, given ? 1 : 0), stream_);
    }
  };
  share_pages(true);
  StepCosts costs;
  for (int64_t n = 1; n <= std::min(options_.max_sequences, kManyCostRows); n *= 2) {
    costs.steps.push_back({n, kUnmeasured});
  }
  // A first round may feed some positions of each, however few sequences there are.
  const int64_t most_sequences = costs.steps.back().rows;
  const int64_t length = std::min(kPageTokens / most_sequences, max_draft_positions(kind));
  if (kind == DrafterKind::model && length > 1) {
    costs.steps.push_back({most_sequences * length, kUnmeasured});
  }
  constexpr Processors kDrawn[] = {
      {}, {.mode = VerifyMode::rejection}, {.mode = VerifyMode::rejection, .top_p = 0.95f}};
  auto& drawing_ms = tables_.drawing_ms[static_cast<int>(kind)];  // of all of a round first
  drawing_ms.fill(kUnmeasured);
  double again_ms = kUnmeasured;  // of a row and kMaxAlternatives beside it first
  const auto measure = [&](double& least, int64_t rows, const Processors& processors,
                           int alternatives = 0) {
    const int64_t sequences = std::min(rows, most_sequences);
    least = std::min(least, 1e3 * step_.measure_draft(*drafter, sequences, rows / sequences,
                                                      alternatives, processors, stream_));
  };
  for (int round = 0; round < kCostRounds; ++round) {
    for (StepCosts::Point& point : costs.steps) measure(point.ms, point.rows, {});
    for (const Processors& drawn : kDrawn) {
      measure(drawing_ms[static_cast<int>(drawing_of(drawn))], 1, drawn);
    }
    measure(again_ms, 1, {}, kMaxAlternatives);
  }
  share_pages(false);
  const double greedy_ms = drawing_ms[static_cast<int>(Drawing::greedy)];
  for (double& ms : drawing_ms) ms = std::max(0.0, ms - greedy_ms);
  tables_.again_ms[static_cast<int>(kind)] = std::max(0.0, again_ms - greedy_ms) / kMaxAlternatives;
  costs.keep_rising();
  const StepCosts::Point last = costs.steps.back();
  if (costs.steps.size() == 1) costs.steps.push_back({2, 2 * last.ms});
  tables_.draft[static_cast<int>(kind)] = std::move(costs);
}

std::vector<DrafterKind> Executor::drafters() const {
  return drafters_at_hand(options_.drafter_files());
}

DrafterKind Executor::default_drafter() const {
  return outrider::default_drafter(options_.drafter_files(), options_.drafter);
}

int64_t Executor::max_draft_positions(DrafterKind kind) const {
  const LogitDrafter* const drafter = drafters_.find(kind);
  return drafter == nullptr ? max_positions_ : std::min(max_positions_, drafter->max_positions());
}

std::string Executor::numerics_fingerprint() const {
  const std::string text = std::string(kVersion) + "|" + build_id() + "|" + model_hash_ + "|" +
                           tokens_hash_ + "|" + drafters_.hash() + "|" +
                           std::to_string(num_ranks_) + "|" + backend_.description() + "|bf16";
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx",
                static_cast<unsigned long long>(digest(text.data(), text.size())));
  return hex;
}

void Executor::report_to(StepProgress& progress) {
  progress_ = &progress;
  for (const DrafterKind kind : drafters()) {
    LogitDrafter* const drafter = drafters_.find(kind);
    if (drafter != nullptr) drafter->report_to(progress);
  }
  progress.ready();
}

void Executor::rest(const std::function<void()>& wait) {
  if (progress_ == nullptr) return wait();
  progress_->rest();
  wait();
  progress_->work();
}

void Executor::expect_work() {
  if (progress_ != nullptr) progress_->expect_work();
}

std::span<const SlotOutcome> Executor::execute(std::span<const uint8_t> bytes) {
  const FloatEnvironment float_environment;
  const StepPlan plan = StepPlan::parse(bytes);
  const uint64_t agreed = digest(bytes.data(), bytes.size(), state_digest());
  // What stood in a page that is not the slot's any more is forgotten.
  for (const PageGrant& grant : plan.draft_pages) {
    drafters_.model()->truncate(grant.slot, grant.first * kPageTokens);
  }
  for (const Admission& admission : plan.admitted) admit(admission);
  for (const PageGrant& grant : plan.target_pages) {
    cache_.set_pages(grant.slot, grant.first, grant.pages, stream_);
  }
  for (const PageGrant& grant : plan.draft_pages) {
    drafters_.model()->cache().set_pages(grant.slot, grant.first, grant.pages, stream_);
  }

  work_.clear();
  int64_t rows = 0;
  for (const PlannedWork& w : plan.work) {
    const SequenceState& slot = slots_[w.slot];
    rows += std::max<int64_t>(w.prefill_end - slot.num_cached, 0) + 1;
    rows += w.num_draft_tokens + w.num_alternatives;
    if (slot.drafter != nullptr) {
      rows += std::max<int64_t>(w.draft_prefill_end - slot.drafter->num_seen(w.slot), 0);
    }
    work_.push_back({.slot = w.slot,
                     .prefill_end = w.prefill_end,
                     .draft_prefill_end = w.draft_prefill_end,
                     .prompt_logits = w.prompt_logits != 0,
                     .decode = w.decode != 0,
                     .num_draft_tokens = w.num_draft_tokens,
                     .proposed = w.proposed,
                     .num_alternatives = w.num_alternatives});
  }
  const ReportedStep reported(progress_, rows);
  const auto outcomes = step_.run(slots_, work_, agreed, stream_);
  for (const SlotOutcome& outcome : outcomes) {
    if (!outcome.decoded || outcome.verdict.non_finite) continue;
    const auto& tokens = slots_[outcome.slot].tokens;
    token_digests_[outcome.slot] =
        chain(std::span(tokens).last(outcome.num_accepted() + 1), token_digests_[outcome.slot]);
  }
  return outcomes;
}

void Executor::admit(const Admission& admission) {
  SequenceState& slot = slots_[admission.slot];
  slot.tokens.assign(admission.tokens.begin(), admission.tokens.end());
  slot.num_cached = admission.num_cached;
  slot.is_stale = false;
  step_.admit(admission.slot, admission.rules, slot.tokens, admission.num_prompt_tokens);
  slot.processors = admission.processors;
  slot.seed = admission.seed;
  slot.choice = static_cast<uint32_t>(admission.choice);
  slot.top_logprobs = admission.top_logprobs;
  slot.top_prompt_logprobs = admission.top_prompt_logprobs;
  slot.drafter = drafters_.find(admission.drafter);
  if (slot.drafter != nullptr) slot.drafter->admit(admission.slot, admission.num_draft_cached);
  token_digests_[admission.slot] = chain(slot.tokens, 0);
}

uint64_t Executor::state_digest() const {
  uint64_t state = cache_.state_digest();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const int64_t parts[] = {static_cast<int64_t>(slots_[i].tokens.size()), slots_[i].num_cached,
                             static_cast<int64_t>(token_digests_[i])};
    state = digest(parts, sizeof parts, state);
  }
  return state;
}

}  // namespace outrider
