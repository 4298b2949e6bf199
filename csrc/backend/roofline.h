// The least time that a GPU can take for what is counted in operation_cost.h: by what its maker
// says of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "backend/operation_cost.h"
#include "comm/exchange_cost.h"

namespace outrider {

struct GpuModel {
  const char* name;
  int64_t memory_bytes;  // as nvidia-smi shows it, ECC on where it can be
  double bandwidth;      // of memory, bytes a second
  double bf16_flops;     // dense, accumulated in fp32, a second
  double link;           // to other GPUs, bytes a second in one direction
  const char* link_name;
  const char* source;
};

std::span<const GpuModel> gpu_models();
// By its name, in any case; null: not known.
const GpuModel* find_gpu_model(const std::string& name);

struct Roofline {
  double memory_seconds = 0;
  double compute_seconds = 0;
  double exchange_seconds = 0;

  // Bytes and operations overlap; exchanges wait for both.
  double seconds() const {
    return (memory_seconds > compute_seconds ? memory_seconds : compute_seconds) + exchange_seconds;
  }
};

// exchange_latency: seconds that an exchange takes beside its bytes.
Roofline roofline(const GpuModel& gpu, const OperationCost& operations,
                  const ExchangeCost& exchanges, double exchange_latency);

}  // namespace outrider
