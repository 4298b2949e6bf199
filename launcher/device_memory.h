// What of a GPU's memory, or of its host's, a rank takes for what, planned before anything is
// loaded.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda_devices.h"
#include "engine/executor.h"

namespace outrider {

// Of the ranks that are shown the same GPUs those that use GPU `gpu`, where rank r of them has GPU
// r modulo their number.
int ranks_on_gpu(int gpu, int num_gpus, int local_ranks);

// Bytes that one of `sharers` ranks may take: `utilization` of the GPU's memory, 0 … 1, less what
// is not free already.
int64_t memory_budget(CudaMemory memory, double utilization, int sharers);

// Positions of the KV cache that `budget` bytes have room for beside weights, draft and workspace,
// in whole pages: as many as --kv-cache-tokens says, else all, up to what every slot could use.
// Throws Error, naming `gpu` ("GPU 0 (NVIDIA H200)"), where that is too little for one sequence of
// --max-positions, or for --kv-cache-tokens.
int64_t plan_kv_tokens(const EngineOptions& options, Numerics numerics, int rank, int ranks,
                       const std::string& gpu, int64_t budget);

// Of ranks on a CPU: throws Error, saying what of --kv-cache-tokens would do, where `available`
// bytes are fewer than the weights of the `local_ranks` ranks of this host take, with the caches
// that the flag asks for. A cache of the default size is not counted: its pages take memory once
// they are used. Which ranks those are but `rank` need not be known: of the others the least
// counts.
void check_host_memory(const EngineOptions& options, int rank, int ranks, int local_ranks,
                       int64_t available);

}  // namespace outrider
