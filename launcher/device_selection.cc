// See device_selection.h.
#include "launcher/device_selection.h"

#include <absl/strings/str_format.h>
#include "comm/nccl/nccl_communicator.h"
#include "comm/self_communicator.h"
#include "comm/world.h"
#include "core/error.h"
#include "model/model_config.h"
#include "model/shard.h"
#include "model/weights.h"

namespace outrider {
namespace {

using Device = DeviceOptions::Device;

std::string describe(int gpu, const CudaDevice& device) {
  return absl::StrFormat("GPU %d (%s)", gpu, device.name);
}

// Why the rank cannot have a GPU; empty where it can.
std::string refusal(const DeviceOptions& options, LocalRank local,
                    const std::vector<CudaDevice>& gpus, const std::string& no_gpus) {
  if (gpus.empty()) return no_gpus;
  const auto count = static_cast<int>(gpus.size());
  if (local.size > count && !options.share_gpus) {
    return absl::StrFormat(
        "%d ranks on this host have %d GPU%s; expected one each, or --share-gpus", local.size,
        count, count == 1 ? "" : "s");
  }
  const int gpu = local.rank % count;
  if (gpus[gpu].capability < kMinCudaCapability) {
    return absl::StrFormat("%s has compute capability %d.%d; expected %d.%d or later, for bfloat16",
                           describe(gpu, gpus[gpu]), gpus[gpu].capability / 10,
                           gpus[gpu].capability % 10, kMinCudaCapability / 10,
                           kMinCudaCapability % 10);
  }
  return "";
}

void check_heads(const std::filesystem::path& directory, const ModelConfig& config) {
  if (config.head_dim <= max_cuda_head_dim()) return;
  throw Error(absl::StrFormat("%s: head_dim is %d; expected at most %d on a GPU",
                              directory.string(), config.head_dim, max_cuda_head_dim()));
}

// Before anything is read; what else is allocated says so itself where it does not fit.
void check_fits(const EngineOptions& engine, int rank, int ranks, const std::string& gpu,
                int64_t free_bytes) {
  const ModelConfig config = ModelConfig::load(engine.model);
  check_heads(engine.model, config);
  int64_t bytes = weight_bytes(config, Shard::of(config, rank, ranks)).held;
  if (engine.draft) {
    const ModelConfig draft = ModelConfig::load(*engine.draft);
    check_heads(*engine.draft, draft);
    bytes += weight_bytes(draft, Shard::of(draft, 0, 1)).held;
  }
  if (bytes <= free_bytes) return;
  throw Error(absl::StrFormat("%s has %.2f GiB free; expected at least %.2f GiB, for the weights",
                              gpu, static_cast<double>(free_bytes) / (1 << 30),
                              static_cast<double>(bytes) / (1 << 30)));
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceOptions& options) {
  command
      .add_option_function<std::string>(
          "--device",
          [&options](const std::string& name) {
            options.device = name == "cuda"  ? Device::cuda
                             : name == "cpu" ? Device::cpu
                                             : Device::automatic;
          },
          "cpu, cuda, or auto (default): a GPU for each rank where there is one, else the CPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command.add_flag("--share-gpus", options.share_gpus,
                   "Let several ranks use one GPU: slow, for tests of correctness");
}

DeviceChoice choose_device(const DeviceOptions& options, LocalRank local,
                           const std::vector<CudaDevice>& gpus, const std::string& no_gpus) {
  const auto cpu = [](const std::string& why) {
    return DeviceChoice{std::nullopt, "cpu", "on the CPU: " + why};
  };
  if (options.device == Device::cpu) return cpu("--device cpu");
  const std::string why_not = refusal(options, local, gpus, no_gpus);
  if (!why_not.empty()) {
    if (options.device == Device::cuda) throw Error("--device cuda: " + why_not);
    return cpu(why_not);
  }
  const int gpu = local.rank % static_cast<int>(gpus.size());
  return {gpu, gpus[gpu].name, "on " + describe(gpu, gpus[gpu])};
}

RankDevice open_device(const DeviceOptions& options, const EngineOptions& engine, LocalRank local,
                       int rank, int ranks) {
  std::vector<CudaDevice> gpus;
  std::string no_gpus;
  if (options.device != Device::cpu) {
    try {
      gpus = cuda_devices();
    } catch (const Error& error) {
      no_gpus = error.what();
    }
  }
  RankDevice device = {choose_device(options, local, gpus, no_gpus), nullptr};
  const DeviceChoice& choice = device.choice;
  if (!choice.gpu) {
    device.backend = make_cpu_backend();
    return device;
  }
  check_fits(engine, rank, ranks, describe(*choice.gpu, gpus[*choice.gpu]),
             open_cuda_device(*choice.gpu));
  device.backend = make_cuda_backend(*choice.gpu);
  return device;
}

std::unique_ptr<Communicator> make_device_communicator(const RankDevice& device,
                                                       const DeviceOptions& options, World* world) {
  if (!device.choice.gpu) {
    return world == nullptr ? make_self_communicator() : world->make_communicator();
  }
  if (world == nullptr) return make_nccl_communicator(0, 1, "");
  if (options.share_gpus) let_nccl_share_devices(world->local_rank());
  return make_nccl_communicator(*world);
}

}  // namespace outrider
