// The bytes of a file of token counts, as the drafters unigram and bigram read it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace outrider {

// tokenizer_hash: of the tokenizer.json whose tokens they are; empty: the file does not say. dtype:
// what the file calls its numbers.
inline std::string count_file(const std::map<std::string, std::vector<int32_t>>& tensors,
                              const std::string& tokenizer_hash, const char* dtype = "I32") {
  nlohmann::json header;
  if (!tokenizer_hash.empty()) header["__metadata__"] = {{"tokenizer", tokenizer_hash}};
  std::string data;
  for (const auto& [name, values] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t));
    header[name] = {
        {"dtype", dtype}, {"shape", {values.size()}}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data;
}

// Counts over tokens below `vocab_size` that make a drafter say something behind each.
inline std::string some_counts(int32_t vocab_size, const std::string& tokenizer_hash) {
  std::vector<int32_t> all(vocab_size), counts(vocab_size), rows = {0}, behind, of_behind;
  for (int32_t token = 0; token < vocab_size; ++token) {
    all[token] = token;
    counts[token] = 1 + token * 7 % 5;
    if (token % 3 != 0) {
      behind.insert(behind.end(), {token / 2, vocab_size - 1});
      of_behind.insert(of_behind.end(), {2, 1 + token % 4});
    }
    rows.push_back(static_cast<int32_t>(behind.size()));
  }
  return count_file({{"unigram_tokens", all},
                     {"unigram_counts", counts},
                     {"bigram_rows", rows},
                     {"bigram_tokens", behind},
                     {"bigram_counts", of_behind}},
                    tokenizer_hash);
}

}  // namespace outrider
