// `outrider bench op`: each kernel's time, as a share of what the machine's memory can deliver.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace outrider {

struct OpBenchOptions {
  int threads = 1;   // that do the same side by side, each on weights of its own; rates are added
  int repeats = 7;   // rounds over all cases; medians are reported
  std::string isas;  // instruction sets to measure, comma-separated; empty: all but scalar
  std::string only;  // of the tables `stack`, `prefill`, `verify`, `ops`: one, or empty for all
  std::optional<std::filesystem::path> json;
};

// Prints Markdown tables to stdout; returns the exit code. Throws Error where an option
// names what this machine does not have. Needs 1 GiB of memory a thread.
int run_op_bench(const OpBenchOptions& options);

}  // namespace outrider
