// OutputFile: a report or its samples on disk, whole or not at all.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace outrider {

// Opened before the test begins, so that a wrong path does not cost its result; but it stands under
// another name beside its place until close(), so that a test that fails leaves the file of the one
// before. What is no regular file, or under /dev, is written as it is. Throws Error.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);  // empty: nothing is written
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const std::string& text);
  // Where it cannot be brought to its place, the error names the file that it is left in.
  void close();

 private:
  std::filesystem::path path_, unfinished_;
  std::ofstream file_;
};

// Whether two paths, neither of them empty, are of one file.
bool is_same_file(const std::string& a, const std::string& b);

}  // namespace outrider
