// What cache lines cost that go from one rank's core to another's: the bound of exchanges among
// ranks of one host.
#pragma once

#include <algorithm>
#include <optional>

#include "comm/communicator.h"

namespace outrider {

struct CoreLink {
  double line_seconds = 0;  // until a rank sees a line that another has written
  double read_rate = 0;     // bytes a second, of what another rank has written
  double write_rate = 0;    // bytes a second, where another rank has read the lines since

  // Seconds in which a rank can take part in an exchange, at the least: piece by piece it may write
  // while it reads what others have written.
  double bound(double bytes_written, double bytes_read) const {
    return line_seconds + std::max(bytes_written / write_rate, bytes_read / read_rate);
  }
};

// Every rank calls it, at least two on one host, and gets what ranks 0 and 1 have measured, each at
// the best of many rounds. None where they cannot share memory.
std::optional<CoreLink> measure_core_link(Communicator& communicator);

}  // namespace outrider
