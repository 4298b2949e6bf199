#include "spec/logit_editor.h"

#include <algorithm>

namespace outrider {

namespace {

constexpr float kBan = -100.0f;  // a bias that leaves a token next to no chance

}  // namespace

size_t LogitRules::count_allowed(std::span<const int32_t> proposed, int64_t num_output) const {
  size_t count = 0;
  for (; count < proposed.size(); ++count) {
    const bool masks_ends = num_output + static_cast<int64_t>(count) < min_tokens;
    const bool refused = std::any_of(listed.begin(), listed.end(), [&](const ListedToken& l) {
      return l.token == proposed[count] && (l.bias <= kBan || (masks_ends && l.ends != 0));
    });
    if (refused) break;
  }
  return count;
}

LogitEditor::LogitEditor(Backend& backend, int64_t vocab_size, int64_t num_slots,
                         int64_t max_listed, int64_t max_rows, int64_t max_step_rows)
    : backend_(backend),
      vocab_size_(vocab_size),
      max_listed_(max_listed),
      max_rows_(max_rows),
      max_step_rows_(max_step_rows),
      slots_(num_slots),
      tokens_(backend, num_slots * vocab_size),
      listed_(backend, num_slots * max_listed),
      changed_(backend, num_slots * (kMaxDraftTokens + 1)),
      copies_(backend, num_slots * (kMaxDraftTokens + 1)),
      edits_(backend, max_rows, max_step_rows) {
  changes_.reserve(num_slots * (kMaxDraftTokens + 1));
}

int64_t LogitEditor::bytes(int64_t vocab_size, int64_t num_slots, int64_t max_listed,
                           int64_t max_rows) {
  const size_t of_slot = vocab_size * sizeof(TokenState) + max_listed * sizeof(ListedToken) +
                         (kMaxDraftTokens + 1) * (sizeof(TokenState) + sizeof(TokenCopy));
  return static_cast<int64_t>(num_slots * of_slot + max_rows * sizeof(LogitEdit));
}

void LogitEditor::admit(int64_t slot, const LogitRules& rules, std::span<const int32_t> tokens,
                        int64_t num_prompt_tokens) {
  Slot& s = slots_[slot];
  s.edits = s.fresh = rules.matter_from(0);
  if (!s.edits) return;
  CHECK(static_cast<int64_t>(rules.listed.size()) <= max_listed_);
  s.rules = rules;
  s.num_output = 0;
  TokenState* const states = tokens_.host() + slot * vocab_size_;
  std::fill_n(states, vocab_size_, TokenState{0});
  for (const int32_t token : tokens.first(num_prompt_tokens)) states[token] |= kTokenInPrompt;
  for (const ListedToken& listed : rules.listed) states[listed.token] |= kTokenListed;
  std::copy(rules.listed.begin(), rules.listed.end(), listed_.host() + slot * max_listed_);
  commit(slot, tokens.subspan(num_prompt_tokens));
}

void LogitEditor::commit(int64_t slot, std::span<const int32_t> tokens) {
  Slot& s = slots_[slot];
  if (!s.edits) return;
  s.num_output += static_cast<int64_t>(tokens.size());
  for (const int32_t token : tokens) {
    const int64_t element = slot * vocab_size_ + token;
    ++tokens_.host()[element];
    if (!s.fresh) changes_.push_back(element);
  }
  s.edits = s.rules.matter_from(s.num_output);
}

void LogitEditor::begin_step(Stream& stream) {
  first_ = 0;
  batch_ = {};
  const auto num_changes = static_cast<int64_t>(changes_.size());
  for (int64_t i = 0; i < num_changes; ++i) {
    changed_.host()[i] = tokens_.host()[changes_[i]];
    copies_.host()[i] = {reinterpret_cast<const int32_t*>(changed_.device() + i),
                         reinterpret_cast<int32_t*>(tokens_.device() + changes_[i])};
  }
  changes_.clear();
  if (num_changes > 0) {
    changed_.upload(0, num_changes, stream);
    copies_.upload(0, num_changes, stream);
    backend_.copy_tokens(copies_.device(), num_changes, stream);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].fresh) continue;
    const auto slot = static_cast<int64_t>(i);
    slots_[i].fresh = false;
    tokens_.upload(slot * vocab_size_, vocab_size_, stream);
    listed_.upload(slot * max_listed_, static_cast<int64_t>(slots_[i].rules.listed.size()), stream);
  }
}

void LogitEditor::add(int64_t slot, const int32_t* drafted, int64_t num_drafted, const float* from,
                      float* to, int64_t first_token, int64_t size) {
  const Slot& s = slots_[slot];
  CHECK(s.edits && num_drafted <= kMaxDraftTokens && first_ + batch_.count < max_step_rows_);
  edits_.host()[first_ + batch_.count++] = {
      .from = from,
      .to = to,
      .tokens = tokens_.device() + slot * vocab_size_,
      .listed = listed_.device() + slot * max_listed_,
      .drafted = drafted,
      .num_listed = static_cast<int32_t>(s.rules.listed.size()),
      .num_drafted = static_cast<int32_t>(num_drafted),
      .first_token = static_cast<int32_t>(first_token),
      .size = static_cast<int32_t>(size),
      .repetition = s.rules.repetition_penalty,
      .frequency = s.rules.frequency_penalty,
      .presence = s.rules.presence_penalty,
      .ends_masked = s.num_output + num_drafted < s.rules.min_tokens ? 1 : 0};
  batch_.largest_size = std::max(batch_.largest_size, size);
}

LogitEditor::Batch LogitEditor::upload(int64_t rows_of_pass, Stream& stream) {
  Batch batch = batch_;
  if (batch.count == 0) return batch;
  CHECK(batch.count <= rows_of_pass && rows_of_pass <= max_rows_);
  CHECK(first_ + rows_of_pass <= max_step_rows_);
  for (; batch.count < rows_of_pass; ++batch.count) edits_.host()[first_ + batch.count] = {};
  edits_.upload_to_front(first_, batch.count, stream);
  first_ += batch.count;
  batch_ = {};
  return batch;
}

void LogitEditor::enqueue(const Batch& batch, Stream& stream) {
  if (batch.count == 0) return;
  backend_.edit_logits(edits_.device(), batch.count, batch.largest_size, stream);
}

}  // namespace outrider
