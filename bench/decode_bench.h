// The decode loop by parts, on a checkpoint or on a shape with random weights: what a step of 1 …
// 16 rows costs, and what the parts around it cost.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "bench/bench_device.h"
#include "comm/communicator.h"

namespace outrider {

struct DecodeBenchOptions {
  std::filesystem::path model;  // a Hugging Face directory, or a shape file
  std::optional<std::filesystem::path> draft, draft_head;  // one of them at most
  int64_t context = 256;                                   // tokens in the cache before the rows
  // Of a step, each at most 16; the first is what the others are compared with.
  std::vector<int64_t> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
  int repeats = 15;                     // rounds over all row counts; medians are printed
  size_t copy_bytes = size_t{1} << 30;  // of a copy that says what a GPU's memory delivers
  std::optional<std::filesystem::path> json;
};

// Every rank of the job calls it; rank 0 prints a Markdown table. Throws Error for a bad
// checkpoint.
void run_decode_bench(const DecodeBenchOptions& options, BenchDevice& device,
                      Communicator& communicator);

}  // namespace outrider
