#include "comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "core/stream.h"
#include "core/tensor.h"

namespace outrider {

FileDescriptor make_shared_file(size_t bytes) {
  FileDescriptor file(memfd_create("outrider-ranks", MFD_CLOEXEC));
  if (!file.valid() || posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)) != 0) return {};
  return file;
}

FilePlace place_of(const FileDescriptor& file) {
  FilePlace place;
  struct stat status;
  if (!file.valid() || fstat(file.get(), &status) != 0) return place;
  std::snprintf(place.path, sizeof place.path, "/proc/%d/fd/%d", getpid(), file.get());
  place.device = status.st_dev;
  place.inode = status.st_ino;
  return place;
}

FileDescriptor open_shared_file(const FilePlace& place) {
  FileDescriptor file(open(place.path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  const FilePlace found = place_of(file);
  if (found.device != place.device || found.inode != place.inode) return {};
  return file;
}

Buffer map_shared_file(const FileDescriptor& file, size_t bytes) {
  if (!file.valid()) return {};
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return {};
  return Buffer(data, bytes, [](void* p, size_t n) { munmap(p, n); });
}

Buffer map_shared_memory(Communicator& communicator, size_t bytes) {
  Stream stream;
  FileDescriptor file;  // rank 0's stays open until all have mapped it
  if (communicator.rank() == 0) file = make_shared_file(bytes);
  FilePlace place = place_of(file);
  communicator.broadcast(TensorView(&place, DType::u8, {sizeof place}), 0, stream);
  if (communicator.rank() != 0) file = open_shared_file(place);
  Buffer memory = map_shared_file(file, bytes);
  float missing = memory.data() == nullptr ? 1.0f : 0.0f;
  communicator.all_reduce_sum(TensorView(&missing, DType::f32, {1, 1}), stream);
  if (missing > 0) return {};
  return memory;
}

}  // namespace outrider
