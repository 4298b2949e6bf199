// `outrider bench tokenizer`: how fast text becomes token ids, ugly text included.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace outrider {

struct TokenizerBenchOptions {
  std::filesystem::path model;                  // a Hugging Face directory
  std::vector<std::filesystem::path> texts;     // each encoded whole
  std::optional<std::filesystem::path> corpus;  // of tools/tokenizer_corpus.py
  int repeats = 5;                              // of each input; medians are printed
  double at_least = 0.0;                        // MB/s (1e6 bytes) that every input must reach
};

// Prints a Markdown table to stdout, on one thread; returns the exit code, which is not 0 where an
// input was slower than at_least. Throws Error for a file that cannot be read, and where the ids of
// the corpus are not those that the corpus says.
int run_tokenizer_bench(const TokenizerBenchOptions& options);

}  // namespace outrider
