// A checkpoint whose logits are NaN behind one token, and sound everywhere else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "testing/temporary_directory.h"

namespace outrider {

class PoisonedCheckpoint {
 public:
  // A copy of `model`, whose embeddings are bf16 and not tied to its LM head, with NaNs for the
  // embedding of `token`.
  PoisonedCheckpoint(const std::filesystem::path& model, int32_t token) {
    std::filesystem::copy(model, path(), std::filesystem::copy_options::recursive);
    const Checkpoint checkpoint(path());
    const std::string name = "model.embed_tokens.weight";
    const StoredTensor& table = *checkpoint.find(name);
    const auto* begin = static_cast<const char*>(table.data);
    for (const auto& [other_name, other] : checkpoint.tensors()) {
      if (checkpoint.path_of(other_name) != checkpoint.path_of(name)) continue;
      begin = std::min(begin, static_cast<const char*>(other->data));
    }
    std::fstream file(checkpoint.path_of(name), std::ios::binary | std::ios::in | std::ios::out);
    uint64_t header_bytes = 0;  // behind itself, and before the first tensor
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    const int64_t row_bytes = table.bytes / table.shape[0];
    file.seekp(static_cast<std::streamoff>(sizeof header_bytes + header_bytes) +
               (static_cast<const char*>(table.data) - begin) + token * row_bytes);
    const std::vector<uint16_t> row(row_bytes / 2, 0x7FC0);  // NaN in bf16
    file.write(reinterpret_cast<const char*>(row.data()), row_bytes);
    if (!file.flush()) throw Error(path().string() + ": cannot write");
  }

  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace outrider
