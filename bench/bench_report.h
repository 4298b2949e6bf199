// What benchmarks write to a file: JSON as Google Benchmark writes it, so that its tools read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

struct Measurement {
  std::string name;                        // "linear/rows:5/n:2560/k:2048"
  double seconds = 0;                      // of one, the median
  int64_t samples = 0;                     // that it is the median of
  std::map<std::string, double> counters;  // "bytes_per_second", …
};

// Throws Error where no such file could be written, before there is anything to write: a benchmark
// may take minutes.
void check_bench_report(const std::optional<std::filesystem::path>& file);

// context: of the machine and the run, beside the program's version and the time.
// Throws Error where the file cannot be written.
void write_bench_report(const std::filesystem::path& file,
                        const std::map<std::string, std::string>& context,
                        const std::vector<Measurement>& measurements);

}  // namespace outrider
