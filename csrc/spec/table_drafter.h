// `unigram` and `bigram`: draft from counts of a text, by the token before or by nothing at all
// (Leviathan et al. 2023, section 3.6). They cost next to nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spec/drafter.h"
#include "spec/round_tokens.h"

namespace outrider {

// Logarithms of counts, on the host. A token that was never counted is
// not drafted, but where what is asked of the request, as min_tokens, masks all that were.
struct CountTable {
  std::vector<TableRow> rows;   // [vocab_size]
  std::vector<int32_t> tokens;  // [entries]
  std::vector<float> logits;    // [entries]
};

struct CountTables {
  CountTable unigram;
  CountTable bigram;  // behind a token that has no counts of its own: the unigram's

  // A safetensors file of tools/count_tokens.py, I32: unigram_tokens and unigram_counts [m];
  // bigram_rows [vocab_size + 1], the first entry behind each token; bigram_tokens and
  // bigram_counts [entries]. Tokens ascend in a row, counts are positive. tokenizer_hash: file_hash
  // of the tokenizer.json of the model, whose ids they have to be; the file's metadata name it.
  // Throws Error naming file and tensor.
  static CountTables load(const std::filesystem::path& path, int64_t vocab_size,
                          const std::string& tokenizer_hash);
};

// Of the files *.safetensors in `directory` the one with counts of this tokenizer's tokens; nullopt
// where there is none, or no `directory`. What the others are does not matter. Throws Error where
// that file is broken, or where there are two of them.
std::optional<std::filesystem::path> find_counts(const std::filesystem::path& directory,
                                                 const std::string& tokenizer_hash);

class TableDrafter final : public LogitDrafter {
 public:
  TableDrafter(const CountTable& table, Backend& backend, int64_t num_slots);

  void begin_step() override {}
  int64_t num_seen(int64_t) const override { return INT64_MAX; }
  void admit(int64_t, int64_t) override {}
  void prefill(std::span<const DraftContext>, Stream&) override {}
  uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits,
                   Stream& stream) override;
  void enqueue(Stream& stream) override;
  void truncate(int64_t, int64_t) override {}

 private:
  Backend& backend_;
  Buffer rows_, table_tokens_, table_logits_;
  LogitTable table_;  // of those
  RoundTokens tokens_;
  TensorView logits_;  // of `prepare`
};

}  // namespace outrider
