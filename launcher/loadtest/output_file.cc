// See output_file.h.
#include "launcher/loadtest/output_file.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

// Where links lead, be it to what is not there yet; the path as it is where that cannot be found
// out.
std::filesystem::path resolved(const std::string& path) {
  constexpr int kMostLinks = 40;  // that Linux follows, too
  std::error_code error;
  std::filesystem::path found = std::filesystem::absolute(path, error);
  if (error) return path;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(found, error); ++i) {
    found = found.parent_path() / std::filesystem::read_symlink(found, error);
  }
  found = std::filesystem::weakly_canonical(found, error);
  return error ? std::filesystem::path(path) : found;
}

// /dev/stdout may lead to a regular file, which others hold open.
bool is_of_system(const std::string& path) {
  return path.starts_with("/dev/") || path.starts_with("/proc/");
}

[[noreturn]] void throw_unwritable(const std::filesystem::path& path) {
  throw Error(path.string() + ": cannot be written: " + std::strerror(errno));
}

// An empty file beside `path`, which was not there before: processes of other machines and
// containers, which may share the folder, have the same ids, so none of them makes its name.
std::filesystem::path make_beside(const std::filesystem::path& path) {
  std::random_device random;
  while (true) {
    std::filesystem::path made = path;
    made += absl::StrFormat(".%08x.unfinished", random());
    const int file = open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
      ::close(file);
      return made;
    }
    if (errno != EEXIST) throw_unwritable(path);
  }
}

}  // namespace

OutputFile::OutputFile(const std::string& path) {
  if (path.empty()) return;
  path_ = is_of_system(path) ? std::filesystem::path(path) : resolved(path);
  std::error_code error;
  const auto type = std::filesystem::status(path_, error).type();
  const bool replaced = !is_of_system(path) && (type == std::filesystem::file_type::regular ||
                                                type == std::filesystem::file_type::not_found);
  if (replaced) unfinished_ = make_beside(path_);
  file_.open(replaced ? unfinished_ : path_, std::ios::trunc);
  if (!file_) throw_unwritable(path_);
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
