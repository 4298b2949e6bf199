// The pages of `--html`: which plots and tables say what a load, a sweep or a comparison found.
#pragma once

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
std::string sweep_page(const PageFrame& frame, const SweepValues& values,
                       const std::vector<SweepStep>& steps);
std::string comparison_page(const PageFrame& frame, const std::vector<ArmResult>& arms);

}  // namespace outrider
