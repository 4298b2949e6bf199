#include "backend/roofline.h"

#include <strings.h>

namespace outrider {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Memory: nvidia-smi's total. The rest: NVIDIA's data sheets, whose bf16 rates with sparsity are
// halved, and whose link rates, both directions together, are too.
constexpr GpuModel kGpuModels[] = {
    {"A100-80GB", 81920 * kMiB, 2.039e12, 312e12, 300e9, "NVLink 3",
     "NVIDIA A100 80GB SXM data sheet"},
    {"L40S", 46068 * kMiB, 864e9, 362.05e12, 32e9, "PCIe 4.0 x16", "NVIDIA L40S data sheet"},
    {"H100", 81559 * kMiB, 3.35e12, 989.5e12, 450e9, "NVLink 4", "NVIDIA H100 SXM data sheet"},
    {"H200", 143771 * kMiB, 4.8e12, 989.5e12, 450e9, "NVLink 4", "NVIDIA H200 SXM data sheet"},
    // 7680 bits at 3996 MHz, both edges.
    {"B200", 183359 * kMiB, 7.67e12, 2250e12, 900e9, "NVLink 5",
     "NVIDIA HGX B200 data sheet; bandwidth by its memory bus and clock"},
    {"RTX-5090", 32607 * kMiB, 1.792e12, 209.5e12, 64e9, "PCIe 5.0 x16",
     "NVIDIA RTX Blackwell architecture paper"},
};

}  // namespace

std::span<const GpuModel> gpu_models() { return kGpuModels; }

const GpuModel* find_gpu_model(const std::string& name) {
  for (const GpuModel& gpu : kGpuModels) {
    if (strcasecmp(gpu.name, name.c_str()) == 0) return &gpu;
  }
  return nullptr;
}

Roofline roofline(const GpuModel& gpu, const OperationCost& operations,
                  const ExchangeCost& exchanges, double exchange_latency) {
  return {static_cast<double>(operations.bytes()) / gpu.bandwidth,
          static_cast<double>(operations.flops) / gpu.bf16_flops,
          static_cast<double>(exchanges.bytes) / gpu.link +
              static_cast<double>(exchanges.exchanges) * exchange_latency};
}

}  // namespace outrider
