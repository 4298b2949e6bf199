#include "engine/output_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace outrider {

OutputStream::OutputStream(const Tokenizer& tokenizer, std::vector<std::string> stop)
    : detokenizer_(tokenizer), tokenizer_(&tokenizer), stop_(std::move(stop)) {}

void OutputStream::resume(const std::vector<int32_t>& emitted, TokenEnd& end) {
  for (const int32_t token : emitted) {
    const bool goes_on = push(token, TokenOrigin::plain, end.push(token));
    take();  // each time: what is held stays short, and so does the search for stop strings in it
    if (!goes_on) break;
  }
  tokens_.clear();
  resumed_ = held_.size();
}

bool OutputStream::push(int32_t token, TokenOrigin origin, std::optional<FinishReason> end,
                        std::optional<TokenLogprobs> logprobs) {
  CHECK(!finished_);
  ++num_tokens_;
  if (end == FinishReason::stop) {
    // The token that ends the answer is counted and sent, its text is not.
    tokens_.push_back({token, origin, text_length_, std::move(logprobs)});
    append(detokenizer_.finish());
    finish(FinishReason::stop);
    return false;
  }
  const std::string text = detokenizer_.push(token);
  const bool holds_bytes = text.empty() && !tokenizer_->token_bytes(token).empty();
  tokens_.push_back({token, origin,
                     text_length_ + static_cast<int64_t>(text.size()) + (holds_bytes ? 1 : 0),
                     std::move(logprobs)});
  if (append(text)) {
    finish(FinishReason::stop);
  } else if (end.has_value()) {
    append(detokenizer_.finish());
    finish(*end);
  }
  return !finished_;
}

void OutputStream::cut() {
  if (finished_) return;
  append(detokenizer_.finish());
  finish(FinishReason::cancelled);
}

bool OutputStream::append(const std::string& text) {
  held_ += text;
  text_length_ += static_cast<int64_t>(text.size());
  // Among the matches the earliest start; of stop strings that start there, any: the text before it
  // is the same.
  size_t cut = std::string::npos;
  for (const std::string& stop : stop_) cut = std::min(cut, held_.find(stop));
  if (cut != std::string::npos) {
    text_length_ -= static_cast<int64_t>(held_.size() - cut);
    held_.resize(cut);
    sendable_ = cut;
    return true;
  }
  // Hold the longest tail that a stop string begins with.
  size_t tail = 0;
  for (const std::string& stop : stop_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > tail; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) {
        tail = n;
      }
    }
  }
  sendable_ = held_.size() - tail;
  return false;
}

void OutputStream::finish(FinishReason reason) {
  finished_ = true;
  finish_reason_ = reason;
  sendable_ = held_.size();
}

Chunk OutputStream::take() {
  Chunk chunk;
  chunk.text = held_.substr(0, sendable_);
  held_.erase(0, sendable_);
  sendable_ = 0;
  const int64_t sent = text_length_ - static_cast<int64_t>(held_.size());
  while (!tokens_.empty() && (finished_ || tokens_.front().text_end <= sent)) {
    chunk.token_ids.push_back(tokens_.front().id);
    chunk.origins.push_back(tokens_.front().origin);
    if (tokens_.front().logprobs) chunk.logprobs.push_back(*std::move(tokens_.front().logprobs));
    const int64_t behind = sent - std::min(sent, tokens_.front().text_end);  // bytes after it
    chunk.text_ends.push_back(static_cast<int32_t>(
        std::max<int64_t>(0, static_cast<int64_t>(chunk.text.size()) - behind)));
    tokens_.pop_front();
  }
  // What was held at a resume goes out a second time, for the client not to see.
  const size_t again = std::min(resumed_, chunk.text.size());
  resumed_ -= again;
  chunk.text.erase(0, again);
  for (int32_t& end : chunk.text_ends) end = std::max(0, end - static_cast<int32_t>(again));
  return chunk;
}

}  // namespace outrider
