// Weights in the safetensors format: one mapped file, or a directory of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"

namespace outrider {

// A tensor where it lies in its mapped file, row-major.
struct StoredTensor {
  std::string dtype;  // as the format names it: "BF16", "F32", …
  std::vector<int64_t> shape;
  const void* data = nullptr;
  int64_t bytes = 0;

  int64_t size() const;  // elements
};

// "[576, 1536]"
std::string show_shape(const std::vector<int64_t>& shape);

// One file. Its header is validated whole before anything of it is used: lengths, JSON, names,
// dtypes, and that the tensors lie side by side from the first byte behind the header to the last
// of the file, as the format demands.
class SafetensorsFile {
 public:
  // Throws Error naming the file and the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  // What the writer noted beside them.
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// All tensors of a directory: of model.safetensors, or else of the files that
// model.safetensors.index.json names.
class Checkpoint {
 public:
  // Throws Error naming file and tensor, also where index and files do not agree.
  explicit Checkpoint(const std::filesystem::path& directory);

  // The files with weights, and before them the index where there is one.
  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  // Name and tensor; valid as long as the checkpoint.
  const std::map<std::string, const StoredTensor*, std::less<>>& tensors() const {
    return tensors_;
  }
  // Null where there is none of the name.
  const StoredTensor* find(std::string_view name) const;
  // The file that holds the tensor, for messages.
  std::string path_of(std::string_view name) const;

 private:
  void read_index(const std::filesystem::path& index);

  std::filesystem::path directory_;
  std::vector<std::filesystem::path> paths_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const StoredTensor*, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> file_of_;  // as the index says
};

}  // namespace outrider
