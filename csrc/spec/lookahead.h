// Lookahead: how many tokens each sequence of a step is to draft. Pure: no clock, no I/O; what
// costs and acceptance are is for the caller to know.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spec/acceptance.h"

namespace outrider {

// What holds for requests that give no number themselves.
struct LookaheadPolicy {
  enum class Kind { fixed, table, adaptive };
  struct Entry {
    int batch;  // this many sequences and more …
    int num_tokens;
  };

  Kind kind = Kind::adaptive;
  int fixed = 4;  // K of `fixed`; of seeded answers too, which repeat only with a fixed K
  std::vector<Entry> table;  // by rising batch; for fewer sequences than the first, the first

  // "fixed:4", "table:1=4,8=2", "adaptive"
  std::string text() const;
  // K of `table` for a step in which so many sequences decode.
  int from_table(int batch) const;
  // The most that a sequence may be asked to draft.
  int most() const;
};

// The reverse of text(); "table" alone is a table for CPUs. nullopt: it is none of them.
std::optional<LookaheadPolicy> parse_lookahead(const std::string& text);

// A sequence of a step.
struct LookaheadSequence {
  int drafter = 0;     // of LookaheadCosts
  int max_tokens = 0;  // K at most, 0 … kMaxDraftTokens
  double row_ms = 0;   // what each drafted row takes for the sequence's context
  Hazard hazard{};
  int max_alternatives = 0;  // to its first drafted token: kMaxDraftTokens with the others, at most
  std::array<double, kMaxAlternatives> alternatives{};  // that each of them is accepted
  // What each takes beside its row, and the first of them more.
  double alternative_ms = 0, first_alternative_ms = 0;
  // The step takes no longer than the tokens expected for the sequence would take in steps without
  // drafts, of which those by drafts count for `trust` of a token, and than `spare` such steps
  // more.
  double spare = std::numeric_limits<double>::infinity();
  double trust = 1;
};

// Expected milliseconds.
struct LookaheadCosts {
  struct Drafter {
    // [n]: of a round that extends n sequences by a token; [0] = 0. Empty: rounds are free.
    std::vector<double> round_ms;
    // Sequences that draft at least i + 1 tokens whatever is chosen.
    std::array<int, kMaxDraftTokens> drafting{};
    // What all that is drafted with it may add to the step.
    double max_added_ms = std::numeric_limits<double>::infinity();
  };

  // [r]: of the step with r drafted rows, without its drafting; no more rows than that.
  std::vector<double> step_ms;
  std::vector<Drafter> drafters;
  // [n]: what it takes beside rows that the sequence with the most alternatives has n; [0] = 0.
  // Empty: nothing.
  std::vector<double> alternatives_ms;
  int most_alternatives = 0;  // whatever is chosen
  double tokens = 0;          // that the step emits without what is chosen here
  // Of the whole step. Where nothing is as short, not even the step without drafts, it is no limit.
  double max_ms = std::numeric_limits<double>::infinity();
};

struct LookaheadChoice {
  double tokens = 0, ms = 0;          // expected, of the whole step
  double limit_ms = 0;                // that it may take for all of its sequences
  bool held_back = false;             // without those limits it would have been another
  std::vector<double> added_ms;       // [drafters]: what drafting with it adds
  std::vector<int> num_alternatives;  // [sequences]
};

// Chooses the K of all sequences of a step together, for the most expected tokens over expected
// time. For each depth cap D the rows of the first D positions of all sequences are sorted by their
// probability of being reached and accepted, and every prefix is evaluated: one row more may never
// pay where several do, since the first row of a depth pays for the whole round. All of it with
// alternatives to first tokens, which are rows without a round, and without. Where a row and a
// round cost the same for all, and alternatives nothing else, nothing is better; in any case no K
// that is the same for all is. Prefixes that take too long for some sequence are passed over. Where
// a better one was, prefixes of another order are looked at too, which begins with the first rows
// of those sequences that bear least: their own drafts let them bear more. There may still be
// something better that is a prefix of neither.
class LookaheadSearch {
 public:
  // num_tokens: [sequences]. Valid until the next call.
  const LookaheadChoice& choose(std::span<const LookaheadSequence> sequences,
                                const LookaheadCosts& costs, std::span<int> num_tokens);

 private:
  struct Row {
    // By falling probability (of an alternative: of those before it, too, where these have less;
    // of what comes first: above 1), then position, then sequence.
    uint64_t order;
    double accepted;  // probability that it and all before it are
    int32_t sequence;
    int32_t position;  // of an alternative: kMaxDraftTokens, and which one it is

    bool is_alternative() const { return position >= kMaxDraftTokens; }
    int alternative() const { return position - kMaxDraftTokens; }
  };

  // The first rows of an order, of so many positions, with alternatives or without.
  struct Prefix {
    double rate;  // tokens a millisecond
    bool owing_first = false;
    bool alternatives = false;
    int cap = 0;
    int num_rows = 0;
  };

  using Sequences = std::span<const LookaheadSequence>;

  // Those that are worth something where a row costs least_row_ms, at least, and `rate` is reached
  // already. owing_first: the first rows of sequences of less trust than 1 come first, whatever
  // they are worth: they are there for what these sequences bear.
  void sort_rows(Sequences sequences, double least_row_ms, double rate, bool owing_first);
  // Goes through the rows of the first `cap` positions in their order, leaving out those of a
  // drafter that may add no more, and calls visit(row, tokens, ms) with what the step comes to with
  // it and all before it; until visit returns false. limits_ms_ are of the same rows.
  template <typename Visit>
  void walk(Sequences sequences, const LookaheadCosts& costs, int cap, bool alternatives,
            const Visit& visit);

  void begin_limits(Sequences sequences, double plain_ms);
  double least_limit_ms();

  std::vector<Row> rows_;
  std::vector<double> limits_ms_;  // [sequences]: that the step may take for each; they only rise
  size_t least_limit_ = 0;         // the least of them …
  double found_limit_ms_ = 0;      // … where it still is what it was when it was found
  std::vector<std::array<int, kMaxDraftTokens>> drafting_;  // [drafters]
  std::vector<double> added_ms_;                            // [drafters]
  std::vector<bool> closed_;                                // [drafters]
  std::vector<int> rows_of_;                                // [sequences]
  std::vector<bool> has_all_alternatives_;                  // [sequences]
  LookaheadChoice choice_;
};

}  // namespace outrider
