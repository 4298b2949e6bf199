// Where a rank computes: on the CPU or on a GPU of its host, and why.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda_devices.h"
#include "comm/communicator.h"
#include "engine/executor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace outrider {

class World;

struct DeviceOptions {
  enum class Device { automatic, cpu, cuda };
  Device device = Device::automatic;
  bool share_gpus = false;
  double gpu_memory_utilization = 0.9;
  Numerics numerics = Numerics::exact;
};

// --device, --share-gpus, --gpu-memory-utilization and --numerics. `options` outlives the command.
void add_device_flags(CLI::App& command, DeviceOptions& options);

// --numerics alone.
void add_numerics_flag(CLI::App& command, Numerics& numerics);

// A rank among those of its host.
struct LocalRank {
  int rank = 0;
  int size = 1;
};

struct DeviceChoice {
  std::optional<int> gpu;  // none: the CPU
  std::string name;        // of the GPU's model, or "cpu"
  std::string reason;      // for people: "on GPU 0 (NVIDIA H200)", "on the CPU: …"
};

// A GPU a rank by its number on the host, unless they share. gpus: those of this host; where there
// are none, no_gpus says why. Throws Error where --device cuda or --numerics fast asks for what
// there is not.
DeviceChoice choose_device(const DeviceOptions& options, LocalRank local,
                           const std::vector<CudaDevice>& gpus, const std::string& no_gpus);

// What a rank computes with.
struct RankDevice {
  DeviceChoice choice;
  std::unique_ptr<Backend> backend;
  int64_t kv_cache_tokens = 0;  // of EngineOptions; on a GPU what its memory has room for
};

// Opens what choose_device chose. Throws Error, too, where the GPU cannot run this program's
// kernels, the model's heads are too wide for them, its memory has no room for the weights and one
// sequence, or NCCL is one that this program was not built for. ranks: of the whole job, over which
// the weights are cut.
RankDevice open_device(const DeviceOptions& options, const EngineOptions& engine, LocalRank local,
                       int rank, int ranks);

// For tensors of that device. world: null where this process is alone.
std::unique_ptr<Communicator> make_device_communicator(const RankDevice& device,
                                                       const DeviceOptions& options, World* world);

}  // namespace outrider
