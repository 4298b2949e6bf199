// Where a benchmark runs: the CPU or a GPU, with a clock that suits it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/stream_timer.h"

namespace outrider {

struct BenchDevice {
  std::string name;  // "cpu", or the GPU's model
  bool gpu = false;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<StreamTimer> timer;

  // Seconds of one, over so many in a row: a GPU starts them without the host between them.
  double seconds(int in_a_row, Stream& stream, const std::function<void()>& enqueue) {
    timer->start(stream);
    for (int i = 0; i < in_a_row; ++i) enqueue();
    timer->stop(stream);
    return timer->seconds() / in_a_row;
  }
};

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// What a GPU's memory delivers, bytes a second: a kernel reads and writes `bytes` bytes each, and
// both count. The median of so many copies.
double measure_copy_bandwidth(BenchDevice& device, size_t bytes, int repeats);

}  // namespace outrider
