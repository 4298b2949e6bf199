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
#include "model/rank_queue.h"

namespace outrider {

class JsonNode;

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
      int32_t id;
      int32_t rank;        // of the pair that begins here; kNone: there is none, or the symbol was
                           // merged into the one before it
      int32_t prev, next;  // neighbours, or kNone
    };
    std::vector<Symbol> symbols;
    RankQueue queue;
    std::vector<int32_t> positions;  // of one rank
  };

  // Appends the tokens of one pre-tokenized piece, of at most 2^31 - 1 bytes. O(n log n) for n
  // bytes, where merges stand behind those that make their parts, as training leaves them.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const;

 private:
  static constexpr int32_t kNone = -1;

  void read_merges(const JsonNode& merges, const Vocabulary& vocabulary);
  int32_t rank_of(int32_t left, int32_t right) const;
  void read_symbols(std::string_view piece, Scratch& scratch) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::array<int32_t, 256> byte_ids_;             // kNone: a byte without a token
  std::optional<int32_t> unknown_id_;             // for such bytes; without it they are dropped
  bool fuse_unknown_ = false;                     // one unknown_id_ for a run of them
  absl::flat_hash_map<uint64_t, int32_t> ranks_;  // by left id << 32 | right id
  std::vector<int32_t> merged_ids_;               // by rank
  // ignore_merges: a piece that is a token, here by its bytes, is not merged from them. Empty where
  // it is not set.
  Vocabulary whole_pieces_;
};

}  // namespace outrider
