// CacheModel: what the ranks would make of the pages that plans grant, for traces of the scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/step_plan.h"

#define REQUIRE(condition)                                                                    \
  do {                                                                                        \
    if (!(condition)) throw std::logic_error(std::to_string(__LINE__) + ": " + (#condition)); \
  } while (false)

namespace outrider {

inline int64_t pages_for(int64_t positions) { return (positions + kPageTokens - 1) / kPageTokens; }

// The target's cache, or the drafter's: tables as the grants have them, and what each position of
// each page holds.
struct CacheModel {
  CacheModel(int64_t num_slots, int64_t num_pages)
      : tables(num_slots), cached(num_slots, 0), cells(num_pages * kPageTokens, 0) {}

  void admit(int32_t slot, int64_t num_cached) {
    REQUIRE(num_cached % kPageTokens == 0);
    tables[slot].clear();
    cached[slot] = num_cached;
  }
  void grant(const PageGrant& grant, bool admitted) {
    auto& table = tables[grant.slot];
    REQUIRE(grant.first >= 0 && grant.first <= static_cast<int64_t>(table.size()));
    if (!admitted) cached[grant.slot] = std::min(cached[grant.slot], grant.first * kPageTokens);
    table.resize(grant.first);
    for (const int32_t page : grant.pages) {
      REQUIRE(page >= 0 && page < static_cast<int64_t>(cells.size()) / kPageTokens);
      REQUIRE(std::count(table.begin(), table.end(), page) == 0);
      table.push_back(page);
    }
  }
  void truncate(int64_t slot, int64_t length) {
    tables[slot].resize(std::min<size_t>(tables[slot].size(), pages_for(length)));
  }
  // Pages by how many slots hold them.
  std::map<int32_t, int> users() const {
    std::map<int32_t, int> users;
    for (const auto& table : tables) {
      for (const int32_t page : table) ++users[page];
    }
    return users;
  }
  uint64_t& cell(int64_t slot, int64_t position) {
    REQUIRE(position < static_cast<int64_t>(tables[slot].size()) * kPageTokens);
    return cells[tables[slot][position / kPageTokens] * kPageTokens + position % kPageTokens];
  }
  // Positions [cached, end) are fed: everything before them is read, and they are written.
  void feed(int64_t slot, int64_t end, const std::vector<uint64_t>& content,
            const std::map<int32_t, int>& users) {
    for (int64_t p = 0; p < cached[slot]; ++p) REQUIRE(cell(slot, p) == content[p]);
    for (int64_t p = cached[slot]; p < end; ++p) {
      cell(slot, p) = content[p];
      REQUIRE(users.at(tables[slot][p / kPageTokens]) == 1);  // a shared page is never written
    }
    cached[slot] = std::max(cached[slot], end);
  }

  std::vector<std::vector<int32_t>> tables;  // [slots]
  std::vector<int64_t> cached;               // [slots]: positions
  std::vector<uint64_t> cells;
};

}  // namespace outrider
