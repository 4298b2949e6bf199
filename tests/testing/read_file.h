// A file's bytes.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"

namespace outrider {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path.string() + ": cannot open");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace outrider
