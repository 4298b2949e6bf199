// Copies of checkpoints with other numbers in their tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/bf16.h"
#include "core/error.h"
#include "model/safetensors.h"
#include "testing/temporary_directory.h"

namespace outrider {

class EditedCheckpoint {
 public:
  explicit EditedCheckpoint(const std::filesystem::path& model) {
    std::filesystem::copy(model, path(), std::filesystem::copy_options::recursive);
  }

  const std::filesystem::path& path() const { return directory_.path(); }

 protected:
  // Of a bf16 tensor, from its number `first` on.
  void write(const std::string& name, int64_t first, std::span<const bf16> values) {
    const Checkpoint checkpoint(path());
    const auto* const data = static_cast<const char*>(checkpoint.find(name)->data);
    const char* begin = data;  // of the tensors of its file
    for (const auto& [other_name, other] : checkpoint.tensors()) {
      if (checkpoint.path_of(other_name) != checkpoint.path_of(name)) continue;
      begin = std::min(begin, static_cast<const char*>(other->data));
    }
    std::fstream file(checkpoint.path_of(name), std::ios::binary | std::ios::in | std::ios::out);
    uint64_t header_bytes = 0;  // behind itself, and before the first tensor
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    file.seekp(static_cast<std::streamoff>(sizeof header_bytes + header_bytes) + (data - begin) +
               first * static_cast<int64_t>(sizeof(bf16)));
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size_bytes()));
    if (!file.flush()) throw Error(path().string() + ": cannot write");
  }

 private:
  TemporaryDirectory directory_;
};

// One whose logits are NaN behind one token, and sound everywhere else.
class PoisonedCheckpoint : public EditedCheckpoint {
 public:
  // Of `model`, whose embeddings are bf16 and not tied to its LM head, with NaNs for the embedding
  // of `token`.
  PoisonedCheckpoint(const std::filesystem::path& model, int32_t token) : EditedCheckpoint(model) {
    const std::string name = "model.embed_tokens.weight";
    const int64_t width = Checkpoint(path()).find(name)->shape[1];
    write(name, token * width, std::vector<bf16>(width, bf16{0x7FC0}));
  }
};

// One whose matrices are the same in 8 bits, whole on one rank: as a draft it has a target's
// logits. Its numbers are q / 1024, q from -127 to 127, with a 127 in each row and each column,
// whichever of both is an output's.
class Int8Checkpoint : public EditedCheckpoint {
 public:
  explicit Int8Checkpoint(const std::filesystem::path& model) : EditedCheckpoint(model) {
    std::mt19937 random(1);
    const Checkpoint checkpoint(path());
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      if (tensor->shape.size() != 2) continue;
      const int64_t rows = tensor->shape[0], columns = tensor->shape[1];
      std::vector<bf16> values;
      for (int64_t i = 0; i < rows * columns; ++i) {
        const int64_t row = i / columns, column = i % columns;
        const bool largest = column == row % columns || row == column % rows;
        const int q = largest ? 127 : static_cast<int>(random() % 255) - 127;
        values.push_back(to_bf16(std::ldexp(static_cast<float>(q), -10)));
      }
      write(name, 0, values);
    }
  }
};

}  // namespace outrider
