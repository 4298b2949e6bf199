// Where a benchmark runs: the CPU or a GPU, with a clock that suits it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace outrider {

struct BenchDevice {
  std::string name;  // "cpu", or the GPU's model
  bool gpu = false;
  std::unique_ptr<Backend> backend;

  // Seconds of one, over so many in a row: a GPU starts them without the host between them.
  double seconds(int in_a_row, Stream& stream, const std::function<void()>& enqueue) {
    constexpr int kFrom = kMaxMarks - 2, kTo = kMaxMarks - 1;  // a step has the first ones
    backend->mark(kFrom, stream);
    for (int i = 0; i < in_a_row; ++i) enqueue();
    backend->mark(kTo, stream);
    backend->synchronize(stream);
    return backend->seconds_between(kFrom, kTo) / in_a_row;
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
