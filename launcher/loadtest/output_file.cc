// See output_file.h.
#include "launcher/loadtest/output_file.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

// Where links lead; the path as it is where that cannot be found out.
std::filesystem::path resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  const std::filesystem::path found = std::filesystem::weakly_canonical(whole, error);
  return error ? std::filesystem::path(path) : found;
}

// /dev/stdout may lead to a regular file, which others hold open.
bool is_of_system(const std::string& path) {
  return path.starts_with("/dev/") || path.starts_with("/proc/");
}

}  // namespace

OutputFile::OutputFile(const std::string& path) {
  if (path.empty()) return;
  path_ = is_of_system(path) ? std::filesystem::path(path) : resolved(path);
  std::error_code error;
  const auto type = std::filesystem::status(path_, error).type();
  const bool replaced = !is_of_system(path) && (type == std::filesystem::file_type::regular ||
                                                type == std::filesystem::file_type::not_found);
  std::filesystem::path written = path_;
  if (replaced) written += absl::StrCat(".", getpid(), ".unfinished");
  file_.open(written, std::ios::trunc);
  if (!file_) throw Error(path + ": cannot be written");
  if (replaced) unfinished_ = written;
}

OutputFile::~OutputFile() {
  std::error_code ignored;  // a destructor must not throw
  if (!unfinished_.empty()) std::filesystem::remove(unfinished_, ignored);
}

void OutputFile::write(const std::string& text) {
  if (!path_.empty()) file_ << text;
}

void OutputFile::close() {
  if (path_.empty()) return;
  file_.close();
  std::error_code error;
  if (file_ && !unfinished_.empty()) std::filesystem::rename(unfinished_, path_, error);
  if (!file_) throw Error(path_.string() + ": could not be written whole");
  const std::filesystem::path left = std::exchange(unfinished_, {});
  if (error) {
    throw Error(path_.string() + ": cannot be replaced (" + error.message() + "); what it was to " +
                "hold is in " + left.string());
  }
}

bool is_same_file(const std::string& a, const std::string& b) { return resolved(a) == resolved(b); }

}  // namespace outrider
