#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace outrider {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](const char* what) {
    throw Error(path.string() + ": cannot " + what + ": " + std::strerror(errno));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would wait
  if (fd < 0) fail("open");
  struct stat info {};
  void* data = nullptr;
  const bool sized = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (sized && info.st_size > 0) {
    data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  close(fd);
  if (!sized) throw Error(path.string() + ": expected a regular file");
  if (data == MAP_FAILED) fail("map");
  bytes_ = {static_cast<const uint8_t*>(data), static_cast<size_t>(info.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace outrider
