#include "bench/bench_report.h"

#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/version.h"

namespace outrider {

void check_bench_report(const std::optional<std::filesystem::path>& file) {
  if (!file) return;
  std::error_code unreadable;
  const bool exists = std::filesystem::exists(*file, unreadable);
  if (exists && std::filesystem::is_directory(*file, unreadable)) {
    throw Error(file->string() + ": expected a file, found a folder");
  }
  const std::filesystem::path needed =
      exists ? *file : std::filesystem::absolute(*file).parent_path();
  if (access(needed.c_str(), W_OK) == 0) return;
  throw Error(file->string() + ": cannot be written: " + std::strerror(errno));
}

void write_bench_report(const std::filesystem::path& file,
                        const std::map<std::string, std::string>& context,
                        const std::vector<Measurement>& measurements) {
  nlohmann::ordered_json report;
  auto& about = report["context"];
  about["date"] = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
  about["executable"] = "outrider";
  about["outrider_version"] = kVersion;
  about["num_cpus"] = std::thread::hardware_concurrency();
  for (const auto& [key, value] : context) about[key] = value;
  auto& benchmarks = report["benchmarks"] = nlohmann::ordered_json::array();
  for (const Measurement& m : measurements) {
    nlohmann::ordered_json entry = {{"name", m.name},
                                    {"run_name", m.name},
                                    {"run_type", "aggregate"},
                                    {"aggregate_name", "median"},
                                    {"iterations", m.samples},
                                    {"real_time", m.seconds * 1e6},
                                    {"cpu_time", m.seconds * 1e6},
                                    {"time_unit", "us"}};
    for (const auto& [key, value] : m.counters) entry[key] = value;
    benchmarks.push_back(std::move(entry));
  }
  std::ofstream out(file);
  out << report.dump(1) << "\n";
  if (!out.flush()) throw Error(file.string() + ": cannot be written");
}

}  // namespace outrider
