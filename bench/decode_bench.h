// The decode loop by parts, on a real checkpoint: what a step of 1 … 16 rows costs, and what the
// parts around it cost.
#pragma once

#include <filesystem>
#include <optional>

#include "comm/communicator.h"

namespace outrider {

struct DecodeBenchOptions {
  std::filesystem::path model;
  std::optional<std::filesystem::path> draft;
  int64_t context = 256;  // tokens in the cache before the rows
  int repeats = 15;       // rounds over all row counts; medians are printed
};

// Every rank of the job calls it; rank 0 prints a Markdown table. Throws Error for a bad
// checkpoint.
void run_decode_bench(const DecodeBenchOptions& options, Communicator& communicator);

}  // namespace outrider
