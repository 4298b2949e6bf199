#include "model/inspect.h"

#include <cstdarg>
#include <cstdio>
#include <map>
#include <vector>

#include "model/chat_template.h"
#include "model/checkpoint_hash.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/shard.h"
#include "model/weights.h"

namespace outrider {

namespace {

// One line, as printf makes it.
[[gnu::format(printf, 1, 2)]] std::string line(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return std::string(text) + "\n";
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

long number(int64_t value) { return static_cast<long>(value); }

const char* yes_or_no(bool value) { return value ? "yes" : "no"; }

std::string describe_model(const ModelConfig& config) {
  std::string text = line("architecture     %s", config.architecture.c_str());
  text += line("layers           %ld", number(config.num_layers));
  text += line("hidden size      %ld", number(config.hidden_size));
  text += line("heads            %ld query, %ld KV, of %ld dimensions", number(config.num_heads),
               number(config.num_kv_heads), number(config.head_dim));
  text += line("FFN columns      %ld", number(config.intermediate_size));
  text += line("vocabulary       %ld, embeddings tied: %s", number(config.vocab_size),
               yes_or_no(config.tie_word_embeddings));
  if (!config.draft_token_ids.empty()) {
    text += line("trimmed head     %ld tokens", number(std::ssize(config.draft_token_ids)));
  }
  text += line("biases           attention: %s, FFN: %s", yes_or_no(config.attention_bias),
               yes_or_no(config.mlp_bias));
  text += line("norm, activation %s, %s", config.norm == Norm::layer ? "LayerNorm" : "RMSNorm",
               config.activation == Activation::swiglu ? "SwiGLU" : "GELU by tanh");
  text += line("positions        %ld, %s", number(config.max_position_embeddings),
               config.positions == Positions::learned ? "learned" : "rotary");
  if (config.positions == Positions::rotary) {
    text += line("RoPE             theta %g%s", config.rope_theta,
                 config.rope_scaling ? ", scaled as Llama 3" : "");
  }
  text += "EOS tokens      ";
  for (const int32_t id : config.eos_token_ids) text += " " + std::to_string(id);
  return text + (config.eos_token_ids.empty() ? " none\n" : "\n");
}

std::string describe_files(const std::filesystem::path& directory, const Checkpoint& checkpoint) {
  struct Sum {
    int64_t tensors = 0, parameters = 0, bytes = 0;
  };
  std::map<std::string, Sum> by_dtype;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    Sum& sum = by_dtype[tensor->dtype];
    sum.tensors += 1;
    sum.parameters += tensor->size();
    sum.bytes += tensor->bytes;
  }
  std::string text;
  for (const auto& [dtype, sum] : by_dtype) {
    text += line("tensors          %ld in %s: %ld parameters, %.1f MiB", number(sum.tensors),
                 dtype.c_str(), number(sum.parameters), mib(sum.bytes));
  }
  const bool tokenizer = std::filesystem::exists(directory / "tokenizer.json");
  text += line("tokenizer        %s", tokenizer ? "tokenizer.json" : "none");
  const ChatMessage message = {"user", "Hello"};
  const auto rendered = ChatTemplate::load(directory).render(std::span(&message, 1));
  const std::string status(rendered.status().message());
  text += line("chat template    %s", rendered.ok() ? "known" : status.c_str());
  return text + line("hash             %s", checkpoint_hash(directory).c_str());
}

// "[0, 4)"
std::string show(Range range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

std::string describe_shards(const ModelConfig& config, int ranks) {
  std::string text = line("%4s  %-12s %-12s %-16s %-18s %12s %14s", "rank", "heads", "KV heads",
                          "FFN columns", "vocabulary rows", "weights, MiB", "KV, bytes/token");
  for (int rank = 0; rank < ranks; ++rank) {
    const Shard shard = Shard::of(config, rank, ranks);
    const int64_t kv_bytes = KvCache::page_bytes(config.num_layers, shard.attention) / kPageTokens;
    text +=
        line("%4d  %-12s %-12s %-16s %-18s %12.1f %14ld", rank, show(shard.heads).c_str(),
             show(shard.kv_heads).c_str(), show(shard.intermediate).c_str(),
             show(shard.vocab).c_str(), mib(weight_bytes(config, shard).held), number(kv_bytes));
  }
  return text;
}

}  // namespace

std::string inspect_checkpoint(const std::filesystem::path& directory, int ranks) {
  const ModelConfig config = ModelConfig::load(directory);
  const Checkpoint checkpoint(directory);
  check_tensors(checkpoint, config);
  return describe_model(config) + describe_files(directory, checkpoint) + "\n" +
         describe_shards(config, ranks);
}

}  // namespace outrider
