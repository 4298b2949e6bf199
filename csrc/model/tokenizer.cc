#include "model/tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/byte_level.h"
#include "model/json_file.h"
#include "model/json_node.h"
#include "model/model_config.h"
#include "model/utf8.h"

namespace outrider {
namespace {

constexpr int64_t kMaxId = kMaxVocabSize - 1;
constexpr size_t kMaxFileBytes = size_t{256} << 20;

Vocabulary read_vocabulary(const JsonNode& node) {
  if (!node.value().is_object() || node.value().empty()) node.refuse("an object of tokens and ids");
  Vocabulary vocabulary;
  vocabulary.reserve(node.value().size());
  for (const auto& [token, id] : node.value().items()) {
    vocabulary.emplace(token, static_cast<int32_t>(node[token].integer(0, kMaxId)));
  }
  return vocabulary;
}

// Adds those to `vocabulary` that it does not have. Special ones come first, then the file's order.
std::vector<AddedToken> read_added_tokens(const JsonNode& node, const Normalizer& normalizer,
                                          Vocabulary* vocabulary) {
  const auto model_size = static_cast<int64_t>(vocabulary->size());
  std::vector<AddedToken> tokens;
  Vocabulary seen;
  int64_t largest = -1;
  for (const JsonNode& element : node.elements()) {
    AddedToken token;
    token.content = element["content"].string();
    if (token.content.empty()) element["content"].refuse("a token of at least one byte");
    // Ids beyond the model's follow one another, wherever the file would have them.
    const auto known = vocabulary->find(token.content);
    const int64_t id = known != vocabulary->end() ? known->second
                       : largest >= model_size    ? largest + 1
                                                  : model_size;
    const JsonNode written = element["id"];
    if (written.integer(0, kMaxId) != id) written.refuse(std::to_string(id));
    token.id = static_cast<int32_t>(id);
    largest = std::max(largest, id);
    vocabulary->emplace(token.content, token.id);
    if (!seen.emplace(token.content, token.id).second) {
      element["content"].refuse("a token that is not added twice");
    }
    token.special = element["special"].boolean();
    token.single_word = element["single_word"].boolean();
    token.lstrip = element["lstrip"].boolean();
    token.rstrip = element["rstrip"].boolean();
    token.normalized = element["normalized"].boolean();
    if (token.normalized) {
      token.content = normalizer(token.content);
      // The package would no longer take it for special when it decodes.
      if (token.special && token.content != element["content"].string()) {
        element["content"].refuse("a special token that the normalizer leaves as it is");
      }
    }
    tokens.push_back(std::move(token));
  }
  std::stable_partition(tokens.begin(), tokens.end(), [](const auto& t) { return t.special; });
  return tokens;
}

// Those to be looked for in normalized text or those in text as it came.
AddedTokens matcher(std::vector<AddedToken> tokens, bool normalized) {
  std::erase_if(tokens, [&](const AddedToken& t) { return t.normalized != normalized; });
  return AddedTokens(std::move(tokens));
}

// TemplateProcessing for a single text: special tokens around it.
void read_template(const JsonNode& node, int32_t vocab_size, SpecialAddition* addition) {
  std::vector<int32_t> prefix, suffix;
  int texts = 0;
  for (const JsonNode& element : node["single"].elements()) {
    if (!element.is_null("Sequence")) {
      const JsonNode id = element["Sequence"]["id"];
      if (id.string() != "A") id.refuse("\"A\"");
      ++texts;
      continue;
    }
    const std::string& name = element["SpecialToken"]["id"].string();
    for (const JsonNode& id : node["special_tokens"][name]["ids"].elements()) {
      (texts == 0 ? prefix : suffix).push_back(static_cast<int32_t>(id.integer(0, vocab_size - 1)));
    }
  }
  if (texts != 1) node["single"].refuse("the text exactly once");
  addition->prefix.insert(addition->prefix.begin(), prefix.begin(), prefix.end());
  addition->suffix.insert(addition->suffix.end(), suffix.begin(), suffix.end());
}

void read_post_processor(const JsonNode& node, int32_t vocab_size, SpecialAddition* addition) {
  const std::string& type = node["type"].string();
  if (type == "TemplateProcessing") {
    read_template(node, vocab_size, addition);
  } else if (type == "Sequence") {
    for (const JsonNode& element : node["processors"].elements()) {
      read_post_processor(element, vocab_size, addition);
    }
  } else if (type != "ByteLevel") {  // which moves offsets only
    node["type"].refuse("\"ByteLevel\", \"TemplateProcessing\" or \"Sequence\"");
  }
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  const nlohmann::json json = load_json_object(path, kMaxFileBytes);
  return Tokenizer(JsonNode(json, path));
}

Tokenizer::Tokenizer(const JsonNode& file)
    : vocabulary_(read_vocabulary(file["model"]["vocab"])),
      bpe_(file["model"], vocabulary_),
      pre_tokenizer_(file.get("pre_tokenizer")),
      normalizer_(file.get("normalizer")) {
  const std::vector<AddedToken> added =
      read_added_tokens(file["added_tokens"], normalizer_, &vocabulary_);
  in_text_ = matcher(added, false);
  in_normalized_ = matcher(added, true);
  read_tokens(file, added);
  if (!file.is_null("post_processor")) {
    read_post_processor(file["post_processor"], vocab_size(), &addition_);
  }
  const JsonNode decoder = file["decoder"]["type"];
  if (decoder.string() != "ByteLevel") decoder.refuse("\"ByteLevel\"");
  for (const char* key : {"truncation", "padding"}) file.expect_unset(key);
}

void Tokenizer::read_tokens(const JsonNode& file, const std::vector<AddedToken>& added) {
  std::vector<const std::string*> owners;
  for (const auto& [token, id] : vocabulary_) {
    if (owners.size() <= static_cast<size_t>(id)) owners.resize(id + 1);
    if (owners[id] != nullptr) {
      throw Error(file["model"]["vocab"].where() + " and added_tokens: " + quote(token) + " and " +
                  quote(*owners[id]) + " both have id " + std::to_string(id) +
                  "; expected one token for an id");
    }
    owners[id] = &token;
  }
  tokens_.resize(owners.size());
  const auto bytes_of = [](const std::string& token) {
    return undo_byte_level(token).value_or(token);
  };
  for (size_t id = 0; id < owners.size(); ++id) {
    if (owners[id] != nullptr) tokens_[id].content = bytes_of(*owners[id]);
  }
  for (const AddedToken& token : added) {
    tokens_[token.id] = {token.special ? token.content : bytes_of(token.content), token.special};
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                       int64_t max_tokens) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    if (append_utf8(text, &repaired) > 0) repaired += kReplacementCharacter;
    text = repaired;
  }
  std::vector<int32_t> ids;
  const auto useful = static_cast<size_t>(max_tokens);
  ids.reserve(std::min(text.size() / 3, useful));
  Bpe::Scratch scratch;
  const auto append = [&](int32_t id) {
    ids.push_back(id);
    return ids.size() <= useful;
  };
  const auto append_pieces = [&](std::string_view part) {
    return pre_tokenizer_.split(part, [&](std::string_view piece) {
      bpe_.encode(piece, scratch, &ids);
      return ids.size() <= useful;
    });
  };
  if (add_special_tokens) ids = addition_.prefix;
  in_text_.split(
      text,
      [&](std::string_view part) {
        return in_normalized_.split(normalizer_.empty() ? part : normalizer_(part), append_pieces,
                                    append);
      },
      append);
  if (add_special_tokens) ids.insert(ids.end(), addition_.suffix.begin(), addition_.suffix.end());
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return is_special(id) ? std::string_view() : token(id);
}

std::string_view Tokenizer::token(int32_t id) const {
  CHECK(id >= 0);
  return id < vocab_size() ? std::string_view(tokens_[id].content) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  CHECK(id >= 0);
  return id < vocab_size() && tokens_[id].special;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end()) return std::nullopt;
  return found->second;
}

}  // namespace outrider
