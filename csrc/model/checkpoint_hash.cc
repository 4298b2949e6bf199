#include "model/checkpoint_hash.h"

#include <cstdio>
#include <system_error>
#include <vector>

#include "core/digest.h"
#include "core/mapped_file.h"
#include "model/safetensors.h"

namespace outrider {

namespace {

std::string hash_of(const std::vector<std::filesystem::path>& paths) {
  uint64_t hash = 0;
  for (const auto& path : paths) {
    const MappedFile file(path);
    hash = digest(file.bytes().data(), file.bytes().size(), hash);
  }
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

}  // namespace

std::string checkpoint_hash(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths = Checkpoint(directory).paths();
  paths.insert(paths.begin(), directory / "config.json");
  return hash_of(paths);
}

std::string tokens_hash(const std::filesystem::path& directory) {
  std::string hash;
  for (const char* name : {"tokenizer.json", "generation_config.json"}) {
    const std::filesystem::path path = directory / name;
    std::error_code error;
    const bool absent = !std::filesystem::exists(path, error) && !error;
    hash += (hash.empty() ? "" : " ") + (absent ? "none" : file_hash(path));
  }
  return hash;
}

std::string file_hash(const std::filesystem::path& path) { return hash_of({path}); }

}  // namespace outrider
