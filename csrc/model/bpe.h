// Bpe: byte pair encoding (Sennrich et al. 2016) over bytes: merges the pair of lowest rank,
// leftmost first, until no pair of neighbours has a rank.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "model/json_node.h"

namespace outrider {

// Looks up a std::string_view among std::string keys.
struct StringHash : std::hash<std::string_view> {
  using is_transparent = void;
};
// Token to id, as tokenizer.json writes them.
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

class Bpe {
 public:
  // node: "model" of tokenizer.json, its "vocab" being `vocabulary`. Throws Error for other kinds
  // of model, options that are not supported and merges of unknown tokens.
  Bpe(const JsonNode& node, const Vocabulary& vocabulary);

  // Working memory, of one thread; kept from piece to piece.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id;          // kRemoved: merged into one to the left
      int32_t prev, next;  // neighbours, or kNone
    };
    struct Candidate {
      int32_t rank, position, merged_id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the tokens of one pre-tokenized piece, of at most 2^31 - 1 bytes. O(n log n) for n
  // bytes.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    int32_t rank, merged_id;
  };
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kRemoved = -2;

  void read_merges(const JsonNode& merges, const Vocabulary& vocabulary);
  const Merge* find_merge(int32_t left, int32_t right) const;
  void read_symbols(std::string_view piece, Scratch& scratch) const;
  void consider(int32_t position, Scratch& scratch) const;

  std::array<int32_t, 256> byte_ids_;            // kNone: a byte without a token
  std::optional<int32_t> unknown_id_;            // for such bytes; without it they are dropped
  bool fuse_unknown_ = false;                    // one unknown_id_ for a run of them
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by left id << 32 | right id
  // ignore_merges: a piece that is a token, here by its bytes, is not merged from them. Empty where
  // it is not set.
  Vocabulary whole_pieces_;
};

}  // namespace outrider
