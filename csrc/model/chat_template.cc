#include "model/chat_template.h"

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/digest.h"
#include "core/mapped_file.h"
#include "model/json_file.h"
#include "model/json_node.h"

namespace outrider {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

using Renderer = std::string (*)(std::span<const ChatMessage>, bool add_generation_prompt);

void append_chatml(std::string_view role, std::string_view content, std::string* text) {
  text->append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
}

std::string render_smollm2(std::span<const ChatMessage> messages, bool add_generation_prompt) {
  std::string text;
  if (messages.front().role != "system") {
    append_chatml("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
                  &text);
  }
  for (const ChatMessage& message : messages) append_chatml(message.role, message.content, &text);
  if (add_generation_prompt) text += "<|im_start|>assistant\n";
  return text;
}

struct KnownTemplate {
  uint64_t digest;
  Renderer render;
};

constexpr KnownTemplate kKnownTemplates[] = {
    {0x99AB995E9629DACD, render_smollm2},  // SmolLM2-135M-Instruct
};

// The source of the directory's template, nullopt where it has none.
std::optional<std::string> read_template(const std::filesystem::path& directory) {
  const std::filesystem::path jinja = directory / "chat_template.jinja";
  if (std::filesystem::exists(jinja)) {
    const MappedFile file(jinja);
    return std::string(file.bytes().begin(), file.bytes().end());
  }
  const std::filesystem::path config = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return std::nullopt;
  const nlohmann::json json = load_json_object(config, kMaxConfigBytes);
  const JsonNode node = JsonNode(json, config).get("chat_template");
  if (node.value().is_null()) return std::nullopt;
  if (node.value().is_string()) return node.string();
  // Several, by name: [{"name": "default", "template": "…"}, …].
  for (const JsonNode& named : node.elements()) {
    if (named["name"].string() == "default") return named["template"].string();
  }
  return std::nullopt;  // for tools, say, and none for what is asked here
}

}  // namespace

bool is_chat_role(std::string_view role) {
  return role == "system" || role == "user" || role == "assistant";
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& directory) {
  ChatTemplate result;
  if (std::optional<std::string> source = read_template(directory)) {
    if (source->ends_with('\n')) source->pop_back();  // as Jinja does
    result.digest_ = digest(source->data(), source->size());
  }
  return result;
}

absl::StatusOr<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                                 bool add_generation_prompt) const {
  if (!digest_.has_value()) {
    return absl::FailedPreconditionError("the model has no chat template; send text or ids");
  }
  Renderer renderer = nullptr;
  for (const KnownTemplate& known : kKnownTemplates) {
    if (known.digest == *digest_) renderer = known.render;
  }
  if (renderer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model's chat template, of XXH3 ", absl::Hex(*digest_, absl::kZeroPad16),
                     ", is not one of those known; send text or ids"));
  }
  if (messages.empty()) {
    return absl::InvalidArgumentError("messages is empty; expected at least one message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!is_chat_role(messages[i].role)) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "].role is not one of system, user and assistant"));
    }
  }
  return renderer(messages, add_generation_prompt);
}

}  // namespace outrider
