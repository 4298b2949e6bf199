// Where a rank computes: on the CPU or on a GPU of its host, and why.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda_devices.h"
#include "comm/communicator.h"
#include "comm/job_control.h"
#include "comm/world.h"
#include "engine/executor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace outrider {

struct DeviceOptions {
  enum class Device { automatic, cpu, cuda };
  Device device = Device::automatic;
  bool share_gpus = false;
  double gpu_memory_utilization = 0.9;
  Numerics numerics = Numerics::exact;
  bool served_on_gpus = false;  // by the job that this one goes on for: not on the CPU then
};

// --device, --share-gpus, --gpu-memory-utilization and --numerics. `options` outlives the command.
void add_device_flags(CLI::App& command, DeviceOptions& options);

// --numerics alone.
void add_numerics_flag(CLI::App& command, Numerics& numerics);

// The GPUs that a process is shown.
struct VisibleGpus {
  std::vector<CudaDevice> devices;
  std::string why_none;  // where there is none
  bool broken = false;   // there is none since CUDA failed
};

VisibleGpus visible_gpus(const DeviceOptions& options);

// A rank among those that are shown the same GPUs as it: all of its host, or itself alone where
// CUDA_VISIBLE_DEVICES or a scheduler shows each rank its own.
struct LocalRank {
  int rank = 0;
  int size = 1;
  bool one_host = true;  // that all ranks of the job are on
  int host_size = 1;     // ranks of its host, whatever they are shown
};

// shown: by rank of the job, the CudaDevice::id of its GPUs. Throws Error where another rank is
// shown some of this one's GPUs, but not all of them in the same order.
LocalRank local_rank(int rank, const std::vector<std::vector<std::string>>& shown);
// The same from what the ranks are shown. Collective; the exchange is over before it throws.
LocalRank local_rank(const VisibleGpus& gpus, World& world);

struct DeviceChoice {
  std::optional<int> gpu;  // none: the CPU
  std::string name;        // of the GPU's model, or "cpu"
  std::string reason;      // for people: "on GPU 0 (NVIDIA H200), UUID …", "on the CPU: …"
};

// A GPU for each of the ranks that are shown the same ones, unless they share. Throws Error where
// --device cuda or --numerics fast asks for what there is not, where CUDA failed unless --device
// cpu is asked for, and where a job that ran on GPUs would go on on the CPU.
DeviceChoice choose_device(const DeviceOptions& options, LocalRank local, const VisibleGpus& gpus);

// What a rank computes with.
struct RankDevice {
  DeviceChoice choice;
  std::unique_ptr<Backend> backend;
  int64_t kv_cache_tokens = 0;  // of EngineOptions; on a GPU what its memory has room for
};

// Opens what choose_device chose. Throws Error, too, where the GPU cannot run this program's
// kernels, the model's heads are too wide for them, its memory (or the host's, without a GPU) has
// no room for the weights and one sequence or the KV cache that is asked for, or NCCL is one that
// this program was not built for. ranks: of the whole job, over which the weights are cut.
RankDevice open_device(const DeviceOptions& options, const EngineOptions& engine,
                       const VisibleGpus& gpus, LocalRank local, int rank, int ranks);

// For tensors of the host, or of GPUs. Collective: NCCL's ranks find each other by what rank 0
// tells the others over the control channel.
std::unique_ptr<Communicator> make_device_communicator(bool gpu, const DeviceOptions& options,
                                                       World& world, JobControl& control);
// The same of a process that is alone.
std::unique_ptr<Communicator> make_lone_communicator(bool gpu);

}  // namespace outrider
