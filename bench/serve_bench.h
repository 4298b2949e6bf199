// `outrider bench serve`: the engine that `outrider serve` runs, without its network: how long its
// steps take with and without drafts, and where their time goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "bench/bench_device.h"
#include "comm/communicator.h"
#include "comm/control_channel.h"
#include "engine/executor.h"

namespace outrider {

struct ServeBenchOptions {
  EngineOptions engine;      // its drafter is the one that is measured
  int num_draft_tokens = 4;  // K, in turns with 0; 0: without drafts alone
  int64_t sequences = 1;     // at once, of random tokens
  int64_t prompt_tokens = 64;
  int64_t tokens = 128;                 // that each sequence gets
  int rounds = 3;                       // of such sequences, at 0 and at K
  size_t copy_bytes = size_t{1} << 30;  // of a copy that says what a GPU's memory delivers
  std::optional<std::filesystem::path> json;
};

// Every rank of the job calls it; where there are several, rank 0 has the server's end of the
// control channel, every other rank a client's. Rank 0 prints Markdown tables. Throws Error for a
// bad checkpoint, for sequences that the model or the KV cache has no room for, and where a rank is
// lost.
void run_serve_bench(const ServeBenchOptions& options, BenchDevice& device,
                     Communicator& communicator, ControlServer* server, ControlClient* client);

}  // namespace outrider
