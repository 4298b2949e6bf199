// See output_file.h.
#include "launcher/loadtest/output_file.h"

#include <system_error>

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

}  // namespace

OutputFile::OutputFile(const std::string& path) {
  if (path.empty()) return;
  path_ = resolved(path);
  std::error_code error;
  const auto type = std::filesystem::status(path_, error).type();
  const bool replaced =
      type == std::filesystem::file_type::regular || type == std::filesystem::file_type::not_found;
  std::filesystem::path written = path_;
  if (replaced) written += ".unfinished";
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
  if (!file_ || error) throw Error(path_.string() + ": could not be written whole");
  unfinished_.clear();
}

bool is_same_file(const std::string& a, const std::string& b) { return resolved(a) == resolved(b); }

}  // namespace outrider
