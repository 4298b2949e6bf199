// `outrider bench comm`: what ranks cost each other: collectives by rows, and a plan's way to the
// other ranks and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "bench/bench_device.h"
#include "comm/communicator.h"
#include "comm/control_channel.h"

namespace outrider {

struct CommBenchOptions {
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64};  // of `hidden` floats, that a rank brings
  int64_t hidden = 576;
  int repeats = 201;  // rounds over all exchanges; medians are printed
  std::optional<std::filesystem::path> json;
};

// Every rank of the job calls it, at least two; rank 0 has the server's end of the control channel,
// every other rank a client's. communicator: for tensors of the device. one_host: all ranks are on
// one, so that on the CPU there is a bound. Rank 0 prints Markdown tables. Throws Error where a
// rank is lost.
void run_comm_bench(const CommBenchOptions& options, BenchDevice& device, bool one_host,
                    Communicator& communicator, ControlServer* server, ControlClient* client);

}  // namespace outrider
