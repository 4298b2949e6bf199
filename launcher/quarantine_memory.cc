// See quarantine_memory.h.
#include "launcher/quarantine_memory.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "engine/quarantine.h"

namespace outrider {
namespace {

// No other file has them: on another host the path may name anything.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

QuarantineMemory map(const FileDescriptor& file) {
  struct stat status;
  if (!file.valid() || fcntl(file.get(), F_GET_SEALS) != kSeals ||
      fstat(file.get(), &status) != 0 || status.st_size != sizeof(QuarantineTable)) {
    return nullptr;
  }
  void* memory =
      mmap(nullptr, sizeof(QuarantineTable), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return QuarantineMemory(memory == MAP_FAILED ? nullptr : static_cast<QuarantineTable*>(memory));
}

}  // namespace

FileDescriptor make_quarantine_memory() {
  FileDescriptor file(memfd_create("outrider-quarantine", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ftruncate(file.get(), sizeof(QuarantineTable)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    throw Error("the quarantine's memory: " + errno_text(errno));
  }
  const std::string path =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file.get());
  setenv(kQuarantineVariable, path.c_str(), 1);
  return file;
}

void UnmapQuarantine::operator()(QuarantineTable* table) const {
  munmap(table, sizeof(QuarantineTable));
}

QuarantineMemory open_quarantine_memory() {
  const char* path = std::getenv(kQuarantineVariable);
  if (path == nullptr) return nullptr;
  QuarantineMemory memory = map(FileDescriptor(open(path, O_RDWR | O_CLOEXEC)));
  if (memory == nullptr) {
    spdlog::warn(
        "requests that are running whenever the job dies will not be refused: rank 0 does not run "
        "beside outrider launch");
  }
  return memory;
}

}  // namespace outrider
