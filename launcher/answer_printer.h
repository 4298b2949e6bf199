// AnswerPrinter: an answer on its way to the terminal: text as it comes, or one JSON object.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "outrider/v1/generation.pb.h"

namespace outrider {

struct AnswerFormat {
  bool json = false;
  bool stats = true;    // text: a line about speculation on stderr
  bool colour = false;  // text: drafted tokens stand out

  void add_to(CLI::App& command);
};

class AnswerPrinter {
 public:
  explicit AnswerPrinter(const AnswerFormat& format) : format_(format) {}

  void chunk(const v1::Chunk& chunk);
  void complete(const v1::Complete& complete);

  bool started() const { return started_; }

 private:
  AnswerFormat format_;
  bool started_ = false;
  std::string text_;                // JSON only
  std::vector<int32_t> token_ids_;  // JSON only
};

// "accepted 12 of 30 drafted tokens (40.0 %), 2.10 tokens a step, …"
std::string summary(const v1::Complete& complete);

// The object of --format json, without a line break.
std::string to_json(const std::string& text, const std::vector<int32_t>& token_ids,
                    const v1::Complete& complete);

// `text` with its drafted tokens set off by terminal escapes.
std::string coloured(const v1::Chunk& chunk);

}  // namespace outrider
