#include "spec/lookahead.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace outrider {

namespace {

// Rows are dear on CPUs once some sequences share a step.
constexpr char kTableForCpus[] = "table:1=4,2=3,4=2,8=1,16=0";

bool read_num_tokens(absl::string_view text, int& k) {
  return absl::SimpleAtoi(text, &k) && k >= 0 && k <= kMaxDraftTokens;
}

}  // namespace

std::optional<LookaheadPolicy> parse_lookahead(const std::string& text) {
  LookaheadPolicy policy;
  absl::string_view rest = text;
  if (rest == "adaptive") return policy;
  if (absl::ConsumePrefix(&rest, "fixed:")) {
    policy.kind = LookaheadPolicy::Kind::fixed;
    if (!read_num_tokens(rest, policy.fixed)) return std::nullopt;
    return policy;
  }
  if (rest == "table") rest = kTableForCpus;
  if (!absl::ConsumePrefix(&rest, "table:")) return std::nullopt;
  policy.kind = LookaheadPolicy::Kind::table;
  for (const absl::string_view pair : absl::StrSplit(rest, ',')) {
    const std::vector<absl::string_view> sides = absl::StrSplit(pair, '=');
    LookaheadPolicy::Entry entry{};
    if (sides.size() != 2 || !absl::SimpleAtoi(sides[0], &entry.batch) || entry.batch < 1 ||
        !read_num_tokens(sides[1], entry.num_tokens) ||
        (!policy.table.empty() && entry.batch <= policy.table.back().batch)) {
      return std::nullopt;
    }
    policy.table.push_back(entry);
  }
  return policy;
}

std::string LookaheadPolicy::text() const {
  if (kind == Kind::adaptive) return "adaptive";
  if (kind == Kind::fixed) return absl::StrCat("fixed:", fixed);
  std::string text = "table";
  for (size_t i = 0; i < table.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? ":" : ",", table[i].batch, "=", table[i].num_tokens);
  }
  return text;
}

int LookaheadPolicy::from_table(int batch) const {
  int k = table.front().num_tokens;
  for (const Entry& entry : table) {
    if (entry.batch <= batch) k = entry.num_tokens;
  }
  return k;
}

int LookaheadPolicy::most() const {
  if (kind == Kind::adaptive) return kMaxDraftTokens;
  if (kind == Kind::fixed) return fixed;
  int most = 0;
  for (const Entry& entry : table) most = std::max(most, entry.num_tokens);
  return most;
}

// To leave a row out whose tokens come more slowly than those of the whole step makes the step
// better: so the rest of such a sequence need not be looked at.
void LookaheadSearch::sort_rows(Sequences sequences, double least_row_ms, double rate,
                                bool owing_first) {
  rows_.clear();
  // at: where it stands in the order.
  const auto add = [&](size_t i, int position, double accepted, double at) {
    const uint32_t falling = ~std::bit_cast<uint32_t>(static_cast<float>(at));
    rows_.push_back({uint64_t{falling} << 32 | static_cast<uint64_t>(position) << 24 | i, accepted,
                     static_cast<int32_t>(i), position});
  };
  for (size_t i = 0; i < sequences.size(); ++i) {
    const LookaheadSequence& sequence = sequences[i];
    double accepted = 1;
    for (int j = 0; j < sequence.max_tokens; ++j) {
      accepted *= sequence.hazard[j];
      const bool first = owing_first && j == 0 && sequence.trust < 1;
      if (!first && accepted <= rate * least_row_ms) break;
      add(i, j, accepted, first ? 2 - sequence.trust : accepted);
    }
    double behind = sequence.hazard[0];
    if (sequence.max_tokens == 0 || behind <= rate * least_row_ms) continue;
    for (int j = 0; j < sequence.max_alternatives; ++j) {
      const double alternative = sequence.alternatives[j];
      if (alternative <= rate * least_row_ms) break;
      behind = std::min(behind, alternative);
      add(i, kMaxDraftTokens + j, alternative, behind);
    }
  }
  // Equal ones in a sequence's own order: no prefix leaves out a position.
  std::sort(rows_.begin(), rows_.end(),
            [](const Row& a, const Row& b) { return a.order < b.order; });
}

void LookaheadSearch::begin_limits(Sequences sequences, double plain_ms) {
  limits_ms_.clear();
  for (const LookaheadSequence& sequence : sequences) {
    limits_ms_.push_back(plain_ms * (1 + sequence.spare));
  }
  least_limit_ = 0;
  found_limit_ms_ = -1;  // not looked for
}

double LookaheadSearch::least_limit_ms() {
  if (limits_ms_[least_limit_] != found_limit_ms_) {
    const auto least = std::min_element(limits_ms_.begin(), limits_ms_.end());
    least_limit_ = static_cast<size_t>(least - limits_ms_.begin());
    found_limit_ms_ = *least;
  }
  return found_limit_ms_;
}

template <typename Visit>
void LookaheadSearch::walk(Sequences sequences, const LookaheadCosts& costs, int cap,
                           bool alternatives, const Visit& visit) {
  for (size_t d = 0; d < costs.drafters.size(); ++d) {
    drafting_[d] = costs.drafters[d].drafting;
    added_ms_[d] = 0;
    closed_[d] = false;
  }
  begin_limits(sequences, costs.step_ms[0]);
  rows_of_.assign(sequences.size(), 0);
  has_all_alternatives_.assign(sequences.size(), !alternatives);
  int most_alternatives = costs.most_alternatives;
  double tokens = costs.tokens, beside_ms = 0;
  int num_rows = 0;
  for (const Row& row : rows_) {
    if (num_rows + 1 == static_cast<int>(costs.step_ms.size())) return;
    const LookaheadSequence& sequence = sequences[row.sequence];
    const int d = sequence.drafter;
    if ((row.position >= cap && !row.is_alternative()) || closed_[d]) continue;
    if (rows_of_[row.sequence] == kMaxDraftTokens) continue;
    if (row.is_alternative() && has_all_alternatives_[row.sequence]) continue;
    const LookaheadCosts::Drafter& drafter = costs.drafters[d];
    double beside = sequence.row_ms;
    const int alternatives =
        std::max(most_alternatives, row.is_alternative() ? row.alternative() + 1 : 0);
    if (row.is_alternative()) {
      beside += sequence.alternative_ms;
      if (row.alternative() == 0) beside += sequence.first_alternative_ms;
      if (!costs.alternatives_ms.empty()) {
        beside += costs.alternatives_ms[alternatives] - costs.alternatives_ms[most_alternatives];
      }
    } else if (!drafter.round_ms.empty()) {
      const int n = drafting_[d][row.position];
      beside += drafter.round_ms[n + 1] - drafter.round_ms[n];
    }
    const double added =
        added_ms_[d] + beside + costs.step_ms[num_rows + 1] - costs.step_ms[num_rows];
    if (added > drafter.max_added_ms) {
      // Another round or row may be affordable where an alternative is not.
      if (row.is_alternative()) {
        has_all_alternatives_[row.sequence] = true;
      } else {
        closed_[d] = true;
      }
      continue;
    }
    if (!row.is_alternative()) ++drafting_[d][row.position];
    most_alternatives = alternatives;
    ++rows_of_[row.sequence];
    ++num_rows;
    added_ms_[d] = added;
    beside_ms += beside;
    tokens += row.accepted;
    limits_ms_[row.sequence] += sequence.trust * row.accepted * costs.step_ms[0];
    if (!visit(row, tokens, costs.step_ms[num_rows] + beside_ms)) return;
  }
}

const LookaheadChoice& LookaheadSearch::choose(Sequences sequences, const LookaheadCosts& costs,
                                               std::span<int> num_tokens) {
  CHECK(num_tokens.size() == sequences.size() && !sequences.empty());
  CHECK(!costs.step_ms.empty() && costs.tokens > 0);
  drafting_.resize(costs.drafters.size());
  added_ms_.assign(costs.drafters.size(), 0);
  closed_.resize(costs.drafters.size());
  begin_limits(sequences, costs.step_ms[0]);
  choice_ = {.tokens = costs.tokens,
             .ms = costs.step_ms[0],
             .limit_ms = least_limit_ms(),
             .added_ms = added_ms_,
             .num_alternatives = std::vector<int>(sequences.size(), 0)};
  std::fill(num_tokens.begin(), num_tokens.end(), 0);
  double least_row_ms = std::numeric_limits<double>::infinity();
  for (size_t r = 1; r < costs.step_ms.size(); ++r) {
    least_row_ms = std::min(least_row_ms, costs.step_ms[r] - costs.step_ms[r - 1]);
  }
  const double max_ms =
      costs.step_ms[0] <= costs.max_ms ? costs.max_ms : std::numeric_limits<double>::infinity();
  const double plain_rate = choice_.tokens / choice_.ms;
  Prefix best{.rate = plain_rate};
  const auto look_at = [&](bool owing_first) {
    sort_rows(sequences, least_row_ms, plain_rate, owing_first);
    int deepest = 0;
    bool any_alternatives = false;
    for (const Row& row : rows_) {
      if (!row.is_alternative()) deepest = std::max(deepest, row.position + 1);
      any_alternatives |= row.is_alternative();
    }
    for (const bool alternatives : {false, true}) {
      if (alternatives && !any_alternatives) break;
      for (int cap = 1; cap <= deepest; ++cap) {
        int num_rows = 0;
        walk(sequences, costs, cap, alternatives, [&](const Row&, double tokens, double ms) {
          ++num_rows;
          if (ms > max_ms || tokens <= best.rate * ms) return true;
          if (ms > least_limit_ms()) {
            choice_.held_back = true;
            return true;
          }
          best = {tokens / ms, owing_first, alternatives, cap, num_rows};
          return true;
        });
      }
    }
  };
  look_at(/*owing_first=*/false);
  const bool some_owe = std::any_of(sequences.begin(), sequences.end(),
                                    [](const LookaheadSequence& s) { return s.trust < 1; });
  if (choice_.held_back && some_owe) {
    look_at(/*owing_first=*/true);
    if (!best.owing_first) sort_rows(sequences, least_row_ms, plain_rate, false);
  }
  if (best.num_rows == 0) return choice_;
  walk(sequences, costs, best.cap, best.alternatives,
       [&](const Row& row, double tokens, double ms) {
         ++(row.is_alternative() ? choice_.num_alternatives[row.sequence]
                                 : num_tokens[row.sequence]);
         choice_.tokens = tokens;
         choice_.ms = ms;
         return --best.num_rows > 0;
       });
  choice_.limit_ms = least_limit_ms();
  choice_.added_ms = added_ms_;
  return choice_;
}

}  // namespace outrider
