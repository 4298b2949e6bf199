#include "model/bpe.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/byte_level.h"
#include "model/json_file.h"
#include "model/json_node.h"

namespace outrider {
namespace {

constexpr size_t kShortPiece = 48;  // symbols: up to here merge_short is the faster one

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> read_pair(const JsonNode& node) {
  constexpr std::string_view kExpected = "two tokens, as \"a b\" or [\"a\", \"b\"]";
  if (node.value().is_string()) {
    const std::string_view both = node.string();
    const size_t space = both.find(' ');
    if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
      node.refuse(kExpected);
    }
    return {both.substr(0, space), both.substr(space + 1)};
  }
  if (!node.value().is_array() || node.value().size() != 2) node.refuse(kExpected);
  const std::vector<JsonNode> tokens = node.elements();
  return {tokens[0].string(), tokens[1].string()};
}

}  // namespace

Bpe::Bpe(const JsonNode& node, const Vocabulary& vocabulary) {
  // Files older than the key hold BPE only.
  if (!node.is_null("type") && node["type"].string() != "BPE") node["type"].refuse("\"BPE\"");
  if (!node.is_null("dropout") && node["dropout"].value() != 0.0) node["dropout"].refuse("null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!node.is_null(key) && !node[key].string().empty()) node[key].refuse("null");
  }
  node.expect_unset("byte_fallback");
  fuse_unknown_ = node.boolean_or("fuse_unk", false);
  if (!node.is_null("unk_token")) {
    const auto unknown = vocabulary.find(node["unk_token"].string());
    if (unknown == vocabulary.end()) node["unk_token"].refuse("a token of model.vocab");
    unknown_id_ = unknown->second;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto token = vocabulary.find(byte_level_alphabet()[byte]);
    byte_ids_[byte] = token == vocabulary.end() ? kNone : token->second;
  }
  if (node.boolean_or("ignore_merges", false)) {
    for (const auto& [token, id] : vocabulary) {
      if (auto bytes = undo_byte_level(token)) whole_pieces_.emplace(*std::move(bytes), id);
    }
  }
  read_merges(node["merges"], vocabulary);
}

void Bpe::read_merges(const JsonNode& merges, const Vocabulary& vocabulary) {
  const std::vector<JsonNode> nodes = merges.elements();
  ranks_.reserve(nodes.size());
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto [left, right] = read_pair(nodes[rank]);
    const auto id_of = [&](std::string_view token) {
      const auto found = vocabulary.find(token);
      if (found == vocabulary.end()) {
        nodes[rank].refuse("a merge within model.vocab, which has no " + quote(token));
      }
      return found->second;
    };
    const int32_t left_id = id_of(left), right_id = id_of(right);
    merged_ids_.push_back(id_of(std::string(left) + std::string(right)));
    ranks_.insert_or_assign(pair_key(left_id, right_id), static_cast<int32_t>(rank));
  }
}

int32_t Bpe::rank_of(int32_t left, int32_t right) const {
  const auto found = ranks_.find(pair_key(left, right));
  return found == ranks_.end() ? kNone : found->second;
}

void Bpe::read_symbols(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  bool behind_unknown = false;
  for (char c : piece) {
    int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    const bool unknown = id == kNone;
    if (unknown) {
      const bool fused = behind_unknown && fuse_unknown_;
      if (!unknown_id_.has_value() || fused) continue;
      id = *unknown_id_;
    }
    behind_unknown = unknown;
    const auto index = static_cast<int32_t>(symbols.size());
    if (index > 0) symbols.back().rank = rank_of(symbols.back().id, id);
    symbols.push_back({id, kNone, index - 1, index + 1});
  }
  if (!symbols.empty()) symbols.back().next = kNone;
}

// Looks for the lowest rank over and over, and closes the gap: for few symbols nothing is faster.
void Bpe::merge_short(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  while (true) {
    int32_t best = kNone;
    for (size_t i = 0; i < symbols.size(); ++i) {
      const bool lower = best == kNone || symbols[i].rank < symbols[best].rank;
      if (symbols[i].rank != kNone && lower) best = static_cast<int32_t>(i);
    }
    if (best == kNone) return;
    symbols[best].id = merged_ids_[symbols[best].rank];
    symbols.erase(symbols.begin() + best + 1);
    for (const int32_t i : {best - 1, best}) {
      if (i < 0) continue;
      const bool last = i + 1 == static_cast<int32_t>(symbols.size());
      symbols[i].rank = last ? kNone : rank_of(symbols[i].id, symbols[i + 1].id);
    }
  }
}

// Takes the pairs of one rank at a time, left to right. A position whose pair has changed since it
// was queued is told by its rank: a pair at one position only grows, so no rank comes back.
void Bpe::merge_long(Scratch& scratch) const {
  auto& [symbols, queue, positions] = scratch;
  queue.start(merged_ids_.size());
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].rank != kNone) queue.push(symbols[i].rank, static_cast<int32_t>(i));
  }
  while (true) {
    const int32_t rank = queue.take_lowest(&positions);
    if (rank == kNone) break;
    for (size_t taken = 0; taken < positions.size(); ++taken) {
      const int32_t position = positions[taken];
      auto& left = symbols[position];
      if (left.rank != rank) continue;
      auto& right = symbols[left.next];
      left.id = merged_ids_[rank];
      left.next = right.next;
      right.rank = kNone;
      if (left.next != kNone) symbols[left.next].prev = position;
      bool lower = false;  // a pair of lower rank has come up, which goes first
      for (const int32_t changed : {left.prev, position}) {
        if (changed == kNone) continue;
        auto& symbol = symbols[changed];
        symbol.rank = symbol.next == kNone ? kNone : rank_of(symbol.id, symbols[symbol.next].id);
        if (symbol.rank == kNone) continue;
        queue.push(symbol.rank, changed);
        lower |= symbol.rank < rank;
      }
      if (!lower) continue;
      for (size_t rest = taken + 1; rest < positions.size(); ++rest) {
        queue.push(rank, positions[rest]);
      }
      break;
    }
  }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const {
  CHECK(piece.size() <= INT32_MAX);
  if (!whole_pieces_.empty()) {
    const auto whole = whole_pieces_.find(piece);
    if (whole != whole_pieces_.end()) return ids->push_back(whole->second);
  }
  read_symbols(piece, scratch);
  const auto& symbols = scratch.symbols;
  if (symbols.size() <= kShortPiece) {
    merge_short(scratch);
    for (const auto& symbol : symbols) ids->push_back(symbol.id);
    return;
  }
  merge_long(scratch);
  for (int32_t i = 0; i != kNone; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace outrider
