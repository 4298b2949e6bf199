// The quarantine's table in memory that `outrider launch` holds while its job comes and goes.
#pragma once

#include <memory>

#include "comm/socket.h"

namespace outrider {

struct QuarantineTable;

// Where rank 0 finds it: a path that stands for the memory, on the launcher's host alone.
constexpr const char* kQuarantineVariable = "OUTRIDER_QUARANTINE";

// The launcher's part: new memory, for the jobs that are started from now on. It lasts as long as
// the descriptor. Throws Error.
FileDescriptor make_quarantine_memory();

struct UnmapQuarantine {
  void operator()(QuarantineTable* table) const;
};
using QuarantineMemory = std::unique_ptr<QuarantineTable, UnmapQuarantine>;

// Rank 0's. Null where no launcher names any in the environment, or (with a warning) where it is on
// another host.
QuarantineMemory open_quarantine_memory();

}  // namespace outrider
