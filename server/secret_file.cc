// See secret_file.h.
#include "server/secret_file.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"

namespace outrider {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

}  // namespace

std::string read_small_file(const std::string& flag, const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string bytes(kMaxBytes + 1, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const bool reached_end = file.eof();  // false for what opens and cannot be read: a directory
  bytes.resize(static_cast<size_t>(file.gcount()));
  if (bytes.size() > kMaxBytes) throw Error(flag + " is larger than 1 MiB");
  if (!reached_end) {
    throw Error(flag + " cannot be read: " + std::strerror(errno != 0 ? errno : EIO));
  }
  return bytes;
}

void warn_if_world_readable(const std::string& flag, const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0) {
    spdlog::warn("{} can be read by every user of this machine; chmod 600 it", flag);
  }
}

}  // namespace outrider
