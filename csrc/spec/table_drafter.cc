#include "spec/table_drafter.h"

#include <string>

#include "core/digest.h"
#include "core/error.h"
#include "kernels/math_f64.h"
#include "model/find_draft.h"
#include "model/json_file.h"
#include "model/safetensors.h"

namespace outrider {

namespace {

constexpr const char* kTokenizerField = "tokenizer";  // of the metadata
constexpr const char* kUnigramTokens = "unigram_tokens";

// Ids of another tokenizer mean other text, though there may be as many of them.
void check_tokenizer(const std::filesystem::path& path, const SafetensorsFile& file,
                     const std::string& tokenizer_hash) {
  const auto found = file.metadata().find(kTokenizerField);
  if (found != file.metadata().end() && found->second == tokenizer_hash) return;
  throw Error(path.string() + ": metadata: " + kTokenizerField + " is " +
              (found == file.metadata().end() ? "missing" : quote(found->second)) +
              "; expected the hash of the model's tokenizer.json, " + tokenizer_hash +
              " (tools/count_tokens.py writes it)");
}

// The numbers of a file, checked as they are taken.
class CountFile {
 public:
  CountFile(const std::filesystem::path& path, const std::string& tokenizer_hash)
      : path_(path), file_(path) {
    check_tokenizer(path, file_, tokenizer_hash);
  }

  std::span<const int32_t> integers(const char* name) const {
    const auto at = file_.tensors().find(name);
    if (at == file_.tensors().end()) refuse(name, "is missing; expected a count table");
    const StoredTensor& tensor = at->second;
    if (tensor.dtype != "I32" || tensor.shape.size() != 1) {
      refuse(name, "is " + tensor.dtype + " " + show_shape(tensor.shape) +
                       "; expected one dimension of I32");
    }
    return {static_cast<const int32_t*>(tensor.data), static_cast<size_t>(tensor.size())};
  }

  [[noreturn]] void refuse(const std::string& tensor, const std::string& what) const {
    throw Error(path_.string() + ": tensor " + tensor + " " + what);
  }

  // Appends entries [begin, end) to the table.
  void take(const std::string& prefix, int32_t begin, int32_t end, int64_t vocab_size,
            CountTable& table) const {
    const auto tokens = integers((prefix + "_tokens").c_str());
    const auto counts = integers((prefix + "_counts").c_str());
    if (counts.size() != tokens.size()) {
      refuse(prefix + "_counts", "has " + std::to_string(counts.size()) + " entries; expected " +
                                     std::to_string(tokens.size()) +
                                     ", as many as there are tokens");
    }
    for (int32_t i = begin; i < end; ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size || (i > begin && tokens[i] <= tokens[i - 1])) {
        refuse(prefix + "_tokens", "holds " + std::to_string(tokens[i]) + " at " +
                                       std::to_string(i) + "; expected ascending tokens below " +
                                       std::to_string(vocab_size));
      }
      if (counts[i] < 1) {
        refuse(prefix + "_counts", "holds " + std::to_string(counts[i]) + " at " +
                                       std::to_string(i) + "; expected at least 1");
      }
      table.tokens.push_back(tokens[i]);
      table.logits.push_back(static_cast<float>(log_f64(counts[i])));
    }
  }

 private:
  std::filesystem::path path_;
  SafetensorsFile file_;
};

template <typename T>
Buffer upload(const std::vector<T>& values, Backend& backend) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  Buffer buffer = backend.allocate(bytes);
  Stream stream = backend.make_stream();
  backend.copy_from_host(buffer.view(DType::u8, {bytes}), values.data(), stream);
  backend.synchronize(stream);
  return buffer;
}

}  // namespace

CountTables CountTables::load(const std::filesystem::path& path, int64_t vocab_size,
                              const std::string& tokenizer_hash) {
  const CountFile file(path, tokenizer_hash);
  CountTables tables;
  const auto uncounted = static_cast<int32_t>(file.integers(kUnigramTokens).size());
  if (uncounted == 0) file.refuse(kUnigramTokens, "is empty; expected tokens");
  file.take("unigram", 0, uncounted, vocab_size, tables.unigram);
  tables.unigram.rows.assign(vocab_size, {0, uncounted});

  CountTable& bigram = tables.bigram;
  bigram = tables.unigram;
  const auto rows = file.integers("bigram_rows");
  const auto entries = static_cast<int32_t>(file.integers("bigram_tokens").size());
  if (static_cast<int64_t>(rows.size()) != vocab_size + 1) {
    file.refuse("bigram_rows", "has " + std::to_string(rows.size()) + " entries; expected " +
                                   std::to_string(vocab_size + 1) +
                                   ", one more than the model's vocabulary");
  }
  if (rows.front() != 0 || rows.back() != entries) {
    file.refuse("bigram_rows", "begins with " + std::to_string(rows.front()) + " and ends with " +
                                   std::to_string(rows.back()) + "; expected 0 and " +
                                   std::to_string(entries) + ", the entries of bigram_tokens");
  }
  for (int64_t token = 0; token < vocab_size; ++token) {
    const int32_t begin = rows[token], end = rows[token + 1];
    if (begin < 0 || end < begin || end > entries) {
      file.refuse("bigram_rows", "holds " + std::to_string(begin) + " and " + std::to_string(end) +
                                     " at " + std::to_string(token) +
                                     "; expected ascending entries up to " +
                                     std::to_string(entries));
    }
    if (begin == end) continue;
    const auto first = static_cast<int32_t>(bigram.tokens.size());
    file.take("bigram", begin, end, vocab_size, bigram);
    bigram.rows[token] = {first, first + end - begin};
  }
  return tables;
}

std::optional<std::filesystem::path> find_counts(const std::filesystem::path& directory,
                                                 const std::string& tokenizer_hash) {
  return find_draft(directory, "file of counts for the tokenizer " + tokenizer_hash,
                    [&](const std::filesystem::path& entry) {
                      if (entry.extension() != ".safetensors" ||
                          !mentions(entry, {kUnigramTokens, tokenizer_hash})) {
                        return false;
                      }
                      const SafetensorsFile file(entry);
                      const auto found = file.metadata().find(kTokenizerField);
                      return found != file.metadata().end() && found->second == tokenizer_hash;
                    });
}

TableDrafter::TableDrafter(const CountTable& table, Backend& backend, int64_t num_slots)
    : backend_(backend),
      rows_(upload(table.rows, backend)),
      table_tokens_(upload(table.tokens, backend)),
      table_logits_(upload(table.logits, backend)),
      table_{static_cast<const TableRow*>(rows_.data()),
             static_cast<const int32_t*>(table_tokens_.data()),
             static_cast<const float*>(table_logits_.data())},
      tokens_(backend, backend.padded_rows(num_slots)) {}

uint64_t TableDrafter::prepare(std::span<const DraftContext> contexts, TensorView logits,
                               Stream& stream) {
  logits_ = logits;
  tokens_.prepare(contexts, logits.extent(0), stream);
  const int64_t parts[] = {logits.extent(0), reinterpret_cast<int64_t>(logits.raw())};
  return digest(parts, sizeof parts);
}

void TableDrafter::enqueue(Stream& stream) {
  backend_.table_logits(tokens_.enqueue(stream), table_, logits_, stream);
}

}  // namespace outrider
