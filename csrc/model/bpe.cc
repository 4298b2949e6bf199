#include "model/bpe.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/byte_level.h"
#include "model/json_file.h"

namespace outrider {
namespace {

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
  merges_.reserve(nodes.size());
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
    const int32_t merged_id = id_of(std::string(left) + std::string(right));
    merges_.insert_or_assign(pair_key(left_id, right_id),
                             Merge{static_cast<int32_t>(rank), merged_id});
  }
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
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
    symbols.push_back({id, index - 1, index + 1});
  }
  if (!symbols.empty()) symbols.back().next = kNone;
}

// Enters the pair that begins at `position`, where it has a rank.
void Bpe::consider(int32_t position, Scratch& scratch) const {
  const auto& left = scratch.symbols[position];
  if (left.next == kNone) return;
  if (const Merge* merge = find_merge(left.id, scratch.symbols[left.next].id)) {
    scratch.heap.push_back({merge->rank, position, merge->merged_id});
  }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const {
  CHECK(piece.size() <= INT32_MAX);
  if (!whole_pieces_.empty()) {
    const auto whole = whole_pieces_.find(piece);
    if (whole != whole_pieces_.end()) return ids->push_back(whole->second);
  }
  read_symbols(piece, scratch);
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return std::pair(a.rank, a.position) > std::pair(b.rank, b.position);
  };
  heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i), scratch);
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    auto& left = symbols[best.position];
    if (left.id == kRemoved || left.next == kNone) continue;
    auto& right = symbols[left.next];
    // Either side may have been merged since the pair was entered.
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->merged_id != best.merged_id) continue;
    left.id = best.merged_id;
    left.next = right.next;
    right.id = kRemoved;
    if (left.next != kNone) symbols[left.next].prev = best.position;
    for (int32_t position : {left.prev, best.position}) {
      if (position == kNone) continue;
      const size_t before = heap.size();
      consider(position, scratch);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (const auto& symbol : symbols) {
    if (symbol.id != kRemoved) ids->push_back(symbol.id);
  }
}

}  // namespace outrider
