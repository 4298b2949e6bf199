// Memory that ranks of one host map. It has no name, so nothing outlives them.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "comm/communicator.h"
#include "comm/socket.h"
#include "core/buffer.h"

namespace outrider {

// Every rank calls it, and all stand on one host; the communicator's tensors are the host's.
// Zeroed; none on every rank where one cannot map it, as in a container of its own, or where the
// system refuses it.
Buffer map_shared_memory(Communicator& communicator, size_t bytes);

// Its steps:

// Where others find a file while its maker has it open. Travels as bytes.
struct FilePlace {
  char path[40] = {};
  dev_t device = 0;
  ino_t inode = 0;
};

// In memory; invalid where the system refuses it or has no room.
FileDescriptor make_shared_file(size_t bytes);
// Of nothing where the file is invalid.
FilePlace place_of(const FileDescriptor& file);
// Invalid where the path does not lead to that very file: elsewhere it may name anything.
FileDescriptor open_shared_file(const FilePlace& place);
// None where the file is invalid, or the system refuses.
Buffer map_shared_file(const FileDescriptor& file, size_t bytes);

}  // namespace outrider
