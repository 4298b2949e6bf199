// Ranks as threads of one process: tests run the code of several ranks without MPI.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace outrider {

// What the communicators of one group share.
class ThreadGroup;

// One communicator for each of `size` threads; [i] is rank i.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size);

// For a thread that leaves early: every call of the group that waits now or comes later throws
// Error. `member` is any communicator from make_thread_communicators.
void abort_thread_group(Communicator& member);

// Runs body(communicator) on `size` threads and waits for all. Where one throws, its group is
// aborted so that the others end too, and what it threw is thrown here.
void run_thread_ranks(int size, const std::function<void(Communicator&)>& body);

}  // namespace outrider
