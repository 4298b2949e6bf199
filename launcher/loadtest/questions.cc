// See questions.h.
#include "launcher/loadtest/questions.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "bench/random.h"
#include "core/error.h"

namespace outrider {

Questions::Questions(const QuestionSource& source, uint64_t seed)
    : source_(&source),
      seed_(seed),
      order_(source.prompts.size()),
      next_in_order_(order_.size()),
      order_random_(make_generator(seed, RandomPurpose::order)),
      output_random_(make_generator(seed, RandomPurpose::lengths)),
      prompt_random_(make_generator(seed, RandomPurpose::prompts)),
      seed_random_(make_generator(seed, RandomPurpose::seeds)) {
  CHECK(!source.trace.empty() || source.prompt_length || !source.prompts.empty());
  std::iota(order_.begin(), order_.end(), size_t{0});
}

Question Questions::next() {
  Question question;
  const size_t index = num_asked_++;
  question.prompt = static_cast<int>(index);
  question.max_tokens = source_->output_length.draw(output_random_);
  question.seed = seed_random_();
  if (!source_->trace.empty()) {
    const TraceEntry& entry = source_->trace.at(index);
    question.text = entry.text;
    if (entry.text.empty()) question.input_ids = ids_of(entry);
    question.max_tokens = entry.output_length.value_or(question.max_tokens);
  } else if (source_->prompt_length) {
    const int32_t length = source_->prompt_length->draw(prompt_random_);
    add_random_ids(length, prompt_random_, question.input_ids);
  } else {
    const size_t prompt = next_prompt();
    question.prompt = static_cast<int>(prompt);
    question.text = source_->prompts[prompt];
  }
  return question;
}

size_t Questions::next_prompt() {
  if (next_in_order_ == order_.size()) {
    next_in_order_ = 0;
    for (size_t i = order_.size(); i > 1; --i) {  // Fisher and Yates
      std::swap(order_[i - 1], order_[below(order_random_, i)]);
    }
  }
  return order_[next_in_order_++];
}

std::vector<int32_t> Questions::ids_of(const TraceEntry& entry) {
  std::vector<int32_t> ids;
  int32_t left = entry.input_length;
  for (const uint64_t block : entry.hash_ids) {
    std::mt19937_64 random = make_generator(seed_, RandomPurpose::blocks, block);
    const int32_t count = std::min(left, kTraceBlockTokens);
    add_random_ids(count, random, ids);
    left -= count;
  }
  add_random_ids(left, prompt_random_, ids);  // of a prompt that shares nothing
  return ids;
}

void Questions::add_random_ids(int32_t count, std::mt19937_64& random,
                               std::vector<int32_t>& ids) const {
  CHECK(source_->vocab_size > 0);
  for (int32_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(below(random, static_cast<uint64_t>(source_->vocab_size))));
  }
}

}  // namespace outrider
