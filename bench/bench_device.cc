#include "bench/bench_device.h"

#include "backend/device_copy.h"

namespace outrider {

double measure_copy_bandwidth(BenchDevice& device, size_t bytes, int repeats) {
  constexpr int kInARow = 4;
  bytes -= bytes % 16;
  const Buffer from = device.backend->allocate(bytes), to = device.backend->allocate(bytes);
  const auto view = [&](const Buffer& buffer) {
    return buffer.view(DType::u8, {static_cast<int64_t>(bytes)});
  };
  Stream stream = device.backend->make_stream();
  std::vector<double> samples;
  for (int i = 0; i <= repeats; ++i) {
    samples.push_back(
        device.seconds(kInARow, stream, [&] { copy_with_kernel(view(to), view(from), stream); }));
  }
  samples.erase(samples.begin());  // a first launch costs more
  return 2 * static_cast<double>(bytes) / median(samples);
}

}  // namespace outrider
