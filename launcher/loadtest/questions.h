// What a load test asks, one question after the other. All of it follows from a seed.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "launcher/loadtest/length_distribution.h"
#include "launcher/loadtest/trace.h"

namespace outrider {

// Where questions come from: the first of trace, prompt_length and prompts that is there.
struct QuestionSource {
  std::vector<TraceEntry> trace;  // one question each, in order
  // Prompts of random tokens, of which none begins as another does.
  std::optional<LengthDistribution> prompt_length;
  std::vector<std::string> prompts;  // all of them in random order, then all again

  LengthDistribution output_length;  // where the trace says none
  int64_t vocab_size = 0;            // for random tokens
};

struct Question {
  int prompt = 0;                  // questions with the same one ask the same
  std::string text;                // or:
  std::vector<int32_t> input_ids;  // uniform over the vocabulary
  int32_t max_tokens = 0;
  uint64_t seed = 0;  // for sampling
};

// A copy goes on as the original does.
class Questions {
 public:
  // source: outlives this, and holds at least one prompt, length or trace entry.
  Questions(const QuestionSource& source, uint64_t seed);

  // A trace has no more questions than entries.
  Question next();

 private:
  size_t next_prompt();
  std::vector<int32_t> ids_of(const TraceEntry& entry);
  // count: how many are added.
  void add_random_ids(int32_t count, std::mt19937_64& random, std::vector<int32_t>& ids) const;

  const QuestionSource* source_;
  uint64_t seed_;
  std::vector<size_t> order_;  // of prompts
  size_t next_in_order_ = 0;
  size_t num_asked_ = 0;
  std::mt19937_64 order_random_, output_random_, prompt_random_, seed_random_;
};

}  // namespace outrider
