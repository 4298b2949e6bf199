// RankQueue: a priority queue of positions by rank, for BPE: ranks are few (one a merge), positions
// many, and most of what is entered has a rank above those that were taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace outrider {

class RankQueue {
 public:
  static constexpr int32_t kNone = -1;

  // Must be empty: as at first, or after take_lowest has returned kNone. Ranks are
  // 0 … num_ranks - 1.
  void start(size_t num_ranks) {
    newest_.resize(num_ranks, kNone);
    used_.resize((num_ranks + 63) / 64);
    entries_.clear();
    lowest_word_ = used_.size();
  }

  void push(int32_t rank, int32_t position) {
    const size_t word = static_cast<size_t>(rank) / 64;
    used_[word] |= uint64_t{1} << (rank % 64);
    lowest_word_ = std::min(lowest_word_, word);
    entries_.push_back({position, newest_[rank]});
    newest_[rank] = static_cast<int32_t>(entries_.size() - 1);
  }

  // Moves the positions of the lowest rank to *positions, in ascending order. Returns the rank, or
  // kNone where the queue is empty.
  int32_t take_lowest(std::vector<int32_t>* positions) {
    positions->clear();
    while (lowest_word_ < used_.size() && used_[lowest_word_] == 0) ++lowest_word_;
    if (lowest_word_ == used_.size()) return kNone;
    uint64_t& word = used_[lowest_word_];
    const auto rank = static_cast<int32_t>(lowest_word_ * 64) + __builtin_ctzll(word);
    word &= word - 1;
    for (int32_t i = newest_[rank]; i != kNone; i = entries_[i].older) {
      positions->push_back(entries_[i].position);
    }
    newest_[rank] = kNone;
    std::reverse(positions->begin(), positions->end());
    if (!std::is_sorted(positions->begin(), positions->end())) {
      std::sort(positions->begin(), positions->end());
    }
    return rank;
  }

 private:
  struct Entry {
    int32_t position;
    int32_t older;  // the entry of the same rank before it, or kNone
  };

  std::vector<int32_t> newest_;  // by rank: its newest entry, or kNone
  std::vector<uint64_t> used_;   // bit r % 64 of word r / 64: rank r has entries
  size_t lowest_word_ = 0;       // no word before it has a bit
  std::vector<Entry> entries_;
};

}  // namespace outrider
