// `outrider bench op` on a GPU: the operations of the decoders that shape files describe, as a
// share of what the GPU's memory delivers to a plain copy.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "bench/bench_device.h"
#include "core/numerics.h"

namespace outrider {

struct DeviceOpBenchOptions {
  std::vector<std::filesystem::path> shapes;     // see ModelConfig::load_shape
  std::vector<int64_t> rows = {1, 4, 5, 8, 16};  // of each operation
  std::vector<int64_t> contexts = {1024, 8192};  // tokens that attention finds in the cache
  Numerics numerics = Numerics::exact;           // the device's
  int repeats = 7;                               // medians are reported
  size_t copy_bytes = size_t{1} << 30;           // of the copy; a quarter goes by between two uses
                                                 // of the same weights, so that no cache has them
  std::optional<std::filesystem::path> json;
};

// Prints a Markdown table; returns the exit code. Throws Error for a bad shape.
int run_device_op_bench(const DeviceOpBenchOptions& options, BenchDevice& device);

}  // namespace outrider
