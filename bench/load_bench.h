// `outrider bench load`: what load makes of latency in virtual time, with drafts and without: the
// steps of the simulation take what the server's cost tables, measured first, say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "bench/bench_device.h"
#include "bench/simulated_load.h"
#include "comm/communicator.h"
#include "engine/executor.h"

namespace outrider {

struct LoadBenchOptions {
  EngineOptions engine;       // its drafter is the one that is simulated
  std::vector<double> rates;  // requests a second, at random times
  std::vector<int> users;     // at once, who ask again when answered
  SimulatedLoad load{.requests = 2000, .prompt_tokens{16, 96}, .tokens{64, 128}, .alpha{0.2, 0.7}};
  double noise = 0.1;  // SimulatedServer::noise
  int rounds = 10;     // of each load, with requests of their own; kLeastUnits at least
  std::optional<std::filesystem::path> json;
};

// Every rank of the job calls it. Rank 0 prints a Markdown table. Throws Error for a bad
// checkpoint, requests that the model has no room for, a drafter that cannot be simulated, and more
// users than warm up.
void run_load_bench(const LoadBenchOptions& options, BenchDevice& device,
                    Communicator& communicator);

}  // namespace outrider
