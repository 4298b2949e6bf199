// The pages of `--html`: which plots and tables say what a load, a sweep or a comparison found.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/loadtest/comparison.h"
#include "launcher/loadtest/report.h"
#include "launcher/loadtest/request_record.h"
#include "launcher/loadtest/sweep.h"

namespace outrider {

// What stands on each of them.
struct PageFrame {
  std::string title;
  std::string about;                                       // what was asked of whom, in a line
  std::vector<std::pair<std::string, std::string>> facts;  // {name, value}: what was measured
  std::vector<std::string> warnings;
  double warmup_s = 0;
};

std::string load_page(const PageFrame& frame, const LoadResult& load, const LoadReport& report);
// Of a sweep, a comparison, or both.
std::string steps_page(const PageFrame& frame, const std::optional<SweepValues>& sweep,
                       const std::vector<SweepStep>& steps);

}  // namespace outrider
