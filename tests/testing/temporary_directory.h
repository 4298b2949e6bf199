// A directory of a test's own, gone with the object.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.h"

namespace outrider {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "outrider-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error(name + ": cannot make the directory");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;  // a destructor must not throw; what stays is the system's to sweep
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw Error((path_ / name).string() + ": cannot write");
  }

 private:
  std::filesystem::path path_;
};

}  // namespace outrider
