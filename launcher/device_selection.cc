// See device_selection.h.
#include "launcher/device_selection.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "comm/nccl/nccl_communicator.h"
#include "comm/self_communicator.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "core/host_name.h"
#include "launcher/device_memory.h"
#include "model/model_config.h"

namespace outrider {
namespace {

using Device = DeviceOptions::Device;

std::string describe(int gpu, const CudaDevice& device) {
  return absl::StrFormat("GPU %d (%s)", gpu, device.name);
}

// Why the rank cannot have a GPU; empty where it can.
std::string refusal(const DeviceOptions& options, LocalRank local, const VisibleGpus& visible) {
  const std::vector<CudaDevice>& gpus = visible.devices;
  if (gpus.empty()) return visible.why_none;
  const auto count = static_cast<int>(gpus.size());
  if (local.size > count && !options.share_gpus) {
    return absl::StrFormat(
        "%d ranks on this host are shown %d GPU%s; expected one each, or --share-gpus", local.size,
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

void check_heads(const EngineOptions& engine) {
  const auto check = [](const std::filesystem::path& directory) {
    const int64_t head_dim = ModelConfig::load(directory).head_dim;
    if (head_dim <= max_cuda_head_dim()) return;
    throw Error(absl::StrFormat("%s: head_dim is %d; expected at most %d on a GPU",
                                directory.string(), head_dim, max_cuda_head_dim()));
  };
  check(engine.model);
  if (engine.draft) check(*engine.draft);
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
                   "Let several ranks of one host use one GPU: slow, for tests of correctness");
  command
      .add_option("--gpu-memory-utilization", options.gpu_memory_utilization,
                  "Share of a GPU's memory that the ranks on it take, 0 … 1, with all of the KV "
                  "cache that fits (default 0.9)")
      ->check(CLI::Range(0.0, 1.0));
  add_numerics_flag(command, options.numerics);
}

void add_numerics_flag(CLI::App& command, Numerics& numerics) {
  command
      .add_option_function<std::string>(
          "--numerics",
          [&numerics](const std::string& name) {
            numerics = name == "fast" ? Numerics::fast : Numerics::exact;
          },
          "exact (default): an answer's bits depend on its request alone; fast, on GPUs: prompts "
          "by "
          "cuBLASLt and sums by NCCL, in twice the memory for weights")
      ->check(CLI::IsMember({"exact", "fast"}));
}

VisibleGpus visible_gpus(const DeviceOptions& options) {
  if (options.device == Device::cpu) return {};
  try {
    return {.devices = cuda_devices(), .why_none = ""};
  } catch (const NoGpuError& none) {
    return {.devices = {}, .why_none = none.what()};
  } catch (const Error& failure) {
    return {.devices = {}, .why_none = failure.what(), .broken = true};
  }
}

LocalRank local_rank(int rank, const std::vector<std::vector<std::string>>& shown) {
  LocalRank local{0, 0};
  for (int other = 0; other < static_cast<int>(shown.size()); ++other) {
    if (shown[other] == shown[rank]) {
      local.rank += other < rank ? 1 : 0;
      ++local.size;
      continue;
    }
    for (const std::string& id : shown[rank]) {
      if (std::ranges::find(shown[other], id) == shown[other].end()) continue;
      throw Error(absl::StrFormat(
          "ranks %d and %d are shown GPU %s beside others, or in another order; expected the same "
          "GPUs in the same order, or no GPU of the other's (CUDA_VISIBLE_DEVICES)",
          std::min(rank, other), std::max(rank, other), id));
    }
  }
  return local;
}

LocalRank local_rank(const VisibleGpus& gpus, World& world) {
  std::vector<std::string> ids;
  for (const CudaDevice& gpu : gpus.devices) ids.push_back(host_name() + "/" + gpu.id);
  std::vector<std::vector<std::string>> shown;
  for (const std::string& of_rank : world.all_gather_strings(absl::StrJoin(ids, ","))) {
    shown.push_back(absl::StrSplit(of_rank, ',', absl::SkipEmpty()));
  }
  LocalRank local = local_rank(world.rank(), shown);
  local.one_host = world.local_size() == world.size();
  local.host_size = world.local_size();
  return local;
}

DeviceChoice choose_device(const DeviceOptions& options, LocalRank local, const VisibleGpus& gpus) {
  const auto cpu = [&options](const std::string& why) {
    if (options.numerics == Numerics::fast) {
      throw Error("--numerics fast is for GPUs alone; expected exact on the CPU (" + why + ")");
    }
    return DeviceChoice{std::nullopt, "cpu", "on the CPU: " + why};
  };
  if (options.device == Device::cpu) return cpu("--device cpu");
  const std::string why_not = refusal(options, local, gpus);
  if (!why_not.empty()) {
    const std::string asked = options.device == Device::cuda ? "--device cuda: " : "";
    if (gpus.broken) throw Error(asked + why_not + "; expected GPUs that work, or --device cpu");
    if (options.device == Device::cuda) throw Error(asked + why_not);
    if (options.served_on_gpus) {
      throw Error(why_not + "; expected GPUs as before, or a new start with --device cpu");
    }
    return cpu(why_not);
  }
  if (options.share_gpus && !local.one_host) {
    throw Error(
        "--share-gpus: the ranks are on several hosts; expected all on one, since they reach each "
        "other over its loopback interface alone");
  }
  const int gpu = local.rank % static_cast<int>(gpus.devices.size());
  const CudaDevice& device = gpus.devices[gpu];
  // Its number says little where each rank is shown a GPU of its own.
  return {gpu, device.name, absl::StrFormat("on %s, UUID %s", describe(gpu, device), device.id)};
}

RankDevice open_device(const DeviceOptions& options, const EngineOptions& engine,
                       const VisibleGpus& gpus, LocalRank local, int rank, int ranks) {
  RankDevice device = {choose_device(options, local, gpus), nullptr, engine.kv_cache_tokens};
  const DeviceChoice& choice = device.choice;
  if (!choice.gpu) {
    if (const std::optional<int64_t> available = available_memory()) {
      check_host_memory(engine, rank, ranks, local.host_size, *available);
    }
    device.backend = make_cpu_backend();
    return device;
  }
  if (ranks > 1) check_nccl_library();
  check_heads(engine);
  const int gpu = *choice.gpu;
  const int64_t budget =
      memory_budget(open_cuda_device(gpu), options.gpu_memory_utilization,
                    ranks_on_gpu(gpu, static_cast<int>(gpus.devices.size()), local.size));
  device.kv_cache_tokens = plan_kv_tokens(engine, options.numerics, rank, ranks,
                                          describe(gpu, gpus.devices[gpu]), budget);
  device.backend = make_cuda_backend(gpu, options.numerics);
  return device;
}

std::unique_ptr<Communicator> make_device_communicator(bool gpu, const DeviceOptions& options,
                                                       World& world, JobControl& control) {
  if (!gpu) return world.make_communicator();
  if (world.size() == 1) return make_lone_communicator(gpu);
  if (options.share_gpus) let_nccl_share_devices(world.local_rank());
  const std::string id = control.broadcast(world.rank() == 0 ? make_nccl_id() : "");
  return make_nccl_communicator(world.rank(), world.size(), id, options.numerics);
}

std::unique_ptr<Communicator> make_lone_communicator(bool gpu) {
  return gpu ? make_nccl_communicator(0, 1, "") : make_self_communicator();
}

}  // namespace outrider
