// ChatTemplate: a conversation as the text that the model was trained on.
// No Jinja runs here: each known template has a renderer of its own, found by the digest of the
// template's source and tested against Jinja2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace outrider {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// system, user or assistant.
bool is_chat_role(std::string_view role);

class ChatTemplate {
 public:
  // Reads chat_template.jinja, or else "chat_template" of tokenizer_config.json. A directory
  // without either, or without one named "default" among several, and a template that is not known
  // are refused by render() only: text and ids need no template. Throws Error naming the file where
  // one is there and is not what it should be.
  static ChatTemplate load(const std::filesystem::path& directory);

  // Special tokens written in a message's content are not escaped, as in Transformers.
  // add_generation_prompt: ends with what the assistant's answer follows.
  // FailedPrecondition where the model has no template or one that is not known; InvalidArgument
  // for no messages and for other roles.
  absl::StatusOr<std::string> render(std::span<const ChatMessage> messages,
                                     bool add_generation_prompt = true) const;

 private:
  std::optional<uint64_t> digest_;  // of the template; none without one
};

}  // namespace outrider
