// Bpe against its definition: of all neighbours the pair of lowest rank is merged, the leftmost
// first, until no pair has a rank.
#include "model/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/json_node.h"

namespace outrider {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::string>;
using Merges = std::vector<std::pair<std::string, std::string>>;

// The definition, word for word. O(n^2).
Tokens merge_by_definition(const Merges& merges, const std::string& text) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;
  Tokens tokens;
  for (const char c : text) tokens.push_back({c});
  while (true) {
    size_t lowest = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found == ranks.end() || found->second >= lowest) continue;
      lowest = found->second;
      at = i;
    }
    if (lowest == merges.size()) return tokens;
    tokens[at] += tokens[at + 1];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Joins pairs of what there is. In order, no merge stands before those that make its parts, as
// training leaves them; shuffled they do, and a merge may bring up a pair of lower rank.
Merges random_merges(std::mt19937& random, bool shuffled) {
  Tokens tokens = {"a", "b", "c"};
  Merges merges;
  while (merges.size() < 40) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 12) continue;
    merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  if (shuffled) std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TEST(Bpe, MergesByDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const Merges merges = random_merges(random, round % 2 == 1);
    Vocabulary vocabulary;
    Tokens token_of;  // by id
    const auto add = [&](const std::string& token) {
      const auto id = static_cast<int32_t>(vocabulary.size());
      if (vocabulary.emplace(token, id).second) token_of.push_back(token);
    };
    for (const char* letter : {"a", "b", "c"}) add(letter);
    json model = {{"type", "BPE"}, {"merges", json::array()}};
    for (const auto& [left, right] : merges) {
      add(left + right);
      model["merges"].push_back({left, right});
    }
    const Bpe bpe(JsonNode(model, "model"), vocabulary);
    Bpe::Scratch scratch;
    for (const int letters : {1, 2, 3}) {
      for (const size_t length : {0, 1, 2, 7, 47, 48, 49, 50, 300, 301}) {
        std::string text;
        while (text.size() < length) text += static_cast<char>('a' + random() % letters);
        std::vector<int32_t> ids;
        bpe.encode(text, scratch, &ids);
        Tokens found;
        for (const int32_t id : ids) found.push_back(token_of[id]);
        ASSERT_EQ(found, merge_by_definition(merges, text)) << model.dump() << "\n" << text;
      }
    }
  }
}

TEST(RankQueue, GivesTheLowestRankFirstAndItsPositionsInOrder) {
  using Positions = std::vector<int32_t>;
  RankQueue queue;
  Positions positions;
  for (int round = 0; round < 2; ++round) {
    queue.start(200);
    for (const auto& [rank, position] : std::vector<std::pair<int32_t, int32_t>>{
             {199, 4}, {7, 5}, {64, 1}, {7, 3}, {63, 9}, {7, 8}, {64, 0}}) {
      queue.push(rank, position);
    }
    EXPECT_EQ(queue.take_lowest(&positions), 7);
    EXPECT_EQ(positions, Positions({3, 5, 8}));
    EXPECT_EQ(queue.take_lowest(&positions), 63);
    EXPECT_EQ(positions, Positions({9}));
    queue.push(0, 6);  // below what was taken
    EXPECT_EQ(queue.take_lowest(&positions), 0);
    EXPECT_EQ(positions, Positions({6}));
    EXPECT_EQ(queue.take_lowest(&positions), 64);
    EXPECT_EQ(positions, Positions({0, 1}));
    EXPECT_EQ(queue.take_lowest(&positions), 199);
    EXPECT_EQ(positions, Positions({4}));
    EXPECT_EQ(queue.take_lowest(&positions), RankQueue::kNone);
    EXPECT_EQ(positions, Positions());
  }
}

}  // namespace
}  // namespace outrider
