#include "bench/device_op_bench.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <span>
#include <string>

#include "backend/operation_cost.h"
#include "bench/bench_report.h"
#include "core/error.h"
#include "model/random_weights.h"

namespace outrider {
namespace {

constexpr int kInARow = 4;
constexpr int kWarmUp = 3;  // a first run, a second that records, one that was recorded
constexpr int64_t kMostCopies = 64;

class DeviceOpBench {
 public:
  DeviceOpBench(const DeviceOpBenchOptions& options, BenchDevice& device)
      : options_(options),
        device_(device),
        backend_(*device.backend),
        stream_(backend_.make_stream()),
        bandwidth_(measure_copy_bandwidth(device, options.copy_bytes, options.repeats)),
        random_(1),
        matrices_(1) {}

  void run(const std::string& shape_name, const ModelConfig& config) {
    const Shard shard = Shard::of(config, 0, 1);
    const int64_t hidden = config.hidden_size;
    const int64_t q = config.num_heads * config.head_dim;
    const int64_t ffn = config.intermediate_size;
    linear(shape_name + "/qkv", shard.attention.qkv_width(), hidden);
    linear(shape_name + "/attention_out", hidden, q);
    const bool swiglu = config.activation == Activation::swiglu;
    linear_activated(shape_name + (swiglu ? "/gate_up" : "/ffn_in"), config.activation, ffn,
                     hidden);
    linear(shape_name + (swiglu ? "/down" : "/ffn_out"), hidden, ffn);
    linear(shape_name + "/lm_head", config.vocab_size, hidden);
    for (int64_t context : options_.contexts) {
      if (context + std::ranges::max(options_.rows) <= config.max_position_embeddings) {
        attention(shape_name, context, config.max_position_embeddings, shard.attention);
      }
    }
    for (int64_t rows : options_.rows) rowwise(shape_name, rows, config);
  }

  double bandwidth() const { return bandwidth_; }
  const std::vector<Measurement>& measurements() const { return measurements_; }

 private:
  void linear(const std::string& name, int64_t n, int64_t k) {
    std::vector<PackedWeight> weights(copies_of(cuda_packed_bytes(n, k)));
    for (PackedWeight& weight : weights) weight = matrices_.make(n, k, backend_);
    for (int64_t rows : options_.rows) {
      const Buffer x = upload(random_values(rows * k));
      const Buffer y = backend_.allocate(rows * n * sizeof(float));
      measure("linear/" + name + absl::StrFormat("/rows:%d/n:%d/k:%d", rows, n, k),
              linear_cost(rows, n, k, false, options_.numerics), weights.size(), [&](size_t i) {
                backend_.linear(weights[i], x.view(DType::bf16, {rows, k}), {},
                                y.view(DType::f32, {rows, n}), stream_);
              });
    }
  }

  // An FFN's first product, with its activation: so has the peer (tests/gpu/peer_torch.py).
  void linear_activated(const std::string& name, Activation activation, int64_t width, int64_t k) {
    const int64_t n = num_inputs(activation) * width;
    std::vector<PackedWeight> weights(copies_of(cuda_packed_bytes(n, k)));
    for (PackedWeight& weight : weights) {
      weight = matrices_.make_ffn_in(activation, width, k, backend_);
    }
    backend_.reserve_activation(std::ranges::max(options_.rows), n);
    for (int64_t rows : options_.rows) {
      const Buffer x = upload(random_values(rows * k));
      const Buffer y = backend_.allocate(rows * width * sizeof(bf16));
      measure("linear/" + name + absl::StrFormat("/rows:%d/n:%d/k:%d", rows, n, k),
              linear_activated_cost(rows, width, k, false, activation, options_.numerics),
              weights.size(), [&](size_t i) {
                backend_.linear_activated(weights[i], x.view(DType::bf16, {rows, k}), {},
                                          activation, y.view(DType::bf16, {rows, width}), stream_);
              });
    }
  }

  // Rotation, the write into the cache and attention, of rows at the end of one sequence, with page
  // tables and scratch memory as a server has them: for the longest context that the model allows.
  void attention(const std::string& name, int64_t context, int64_t max_positions,
                 const AttentionShape& shape) {
    const int64_t tokens = context + std::ranges::max(options_.rows);
    const int64_t num_pages = (tokens + kPageTokens - 1) / kPageTokens;
    const int64_t max_pages = (max_positions + kPageTokens - 1) / kPageTokens;
    const int64_t elements = num_pages * kPageTokens * shape.num_kv_heads * shape.head_dim;
    backend_.reserve_attention(std::ranges::max(options_.rows), max_positions, shape);
    std::vector<int32_t> page_numbers(max_pages);
    std::iota(page_numbers.begin(), page_numbers.begin() + num_pages, 0);
    const Buffer page_table = upload(page_numbers);
    const std::vector<uint16_t> values = random_values(elements);
    std::vector<Buffer> cached(2 * copies_of(4 * elements));  // keys and values by turns
    for (Buffer& buffer : cached) buffer = upload(values);
    const auto pages = [&](size_t i) {
      return cached[i].view(DType::bf16,
                            {num_pages, shape.num_kv_heads, kPageTokens, shape.head_dim});
    };
    const int64_t half = shape.head_dim / 2;
    const Buffer table =
        upload(std::vector<float>(tokens * half, 0.7f));  // of cosines, and of sines
    const TensorView angles = table.view(DType::f32, {tokens, half});
    for (int64_t rows : options_.rows) {
      std::vector<int32_t> row_positions(rows);
      std::iota(row_positions.begin(), row_positions.end(), static_cast<int32_t>(context));
      const Buffer positions = upload(row_positions);
      const Buffer sequences = upload(std::vector<int32_t>(rows));
      const RowMap map = {.positions = positions.view(DType::i32, {rows}),
                          .sequences = sequences.view(DType::i32, {rows}),
                          .page_tables = page_table.view(DType::i32, {1, max_pages}),
                          .context = backend_.padded_context(rows, context + rows)};
      const Buffer qkv = upload(std::vector<float>(rows * shape.qkv_width(), 0.25f));
      const Buffer y = backend_.allocate(rows * shape.num_heads * shape.head_dim * sizeof(bf16));
      measure("rope_and_attend/" + name + absl::StrFormat("/rows:%d/context:%d", rows, context),
              rope_and_attend_cost({.each = rows, .context = context}, max_positions, shape, true),
              cached.size() / 2, [&](size_t i) {
                backend_.rope_and_attend(
                    qkv.view(DType::f32, {rows, shape.qkv_width()}), angles, angles, pages(2 * i),
                    pages(2 * i + 1), y.view(DType::bf16, {rows, shape.num_heads * shape.head_dim}),
                    map, shape, stream_);
              });
    }
  }

  // The norm between the products, with the residual sum. It stays in the cache: rates above the
  // memory's are no surprise.
  void rowwise(const std::string& name, int64_t rows, const ModelConfig& config) {
    const int64_t hidden = config.hidden_size;
    const Buffer x = upload(std::vector<float>(rows * hidden, 0.5f));
    const Buffer sum = upload(std::vector<float>(rows * hidden));  // zeros: x stays
    const Buffer weight = upload(random_values(hidden));
    const Buffer y = backend_.allocate(rows * hidden * sizeof(bf16));
    const std::string suffix = "/" + name + absl::StrFormat("/rows:%d", rows);
    const TensorView x_hidden = x.view(DType::f32, {rows, hidden});
    const TensorView addend = sum.view(DType::f32, {rows, hidden});
    const TensorView y_hidden = y.view(DType::bf16, {rows, hidden});
    const TensorView weights = weight.view(DType::bf16, {hidden});
    if (config.norm == Norm::rms) {
      measure("rms_norm" + suffix, rms_norm_cost(rows, hidden, true), 1, [&](size_t) {
        backend_.rms_norm(x_hidden, addend, weights, 1e-5f, y_hidden, stream_);
      });
    } else {
      measure("layer_norm" + suffix, layer_norm_cost(rows, hidden, true), 1, [&](size_t) {
        backend_.layer_norm(x_hidden, addend, weights, weights, 1e-5f, y_hidden, stream_);
      });
    }
  }

  // run(i) enqueues the operation on copy i of what it reads.
  void measure(const std::string& name, const OperationCost& cost, size_t copies,
               const std::function<void(size_t)>& run) {
    const uint64_t key = ++last_key_;
    const auto all = [&] {
      backend_.replay(key, stream_, /*collective=*/false, [&] {
        for (size_t i = 0; i < copies; ++i) run(i);
      });
    };
    device_.seconds(kWarmUp, stream_, all);
    std::vector<double> samples;
    for (int i = 0; i < options_.repeats; ++i) {
      samples.push_back(device_.seconds(kInARow, stream_, all) / static_cast<double>(copies));
    }
    const double seconds = median(samples);
    const double rate = static_cast<double>(cost.bytes()) / seconds;
    measurements_.push_back({name,
                             seconds,
                             options_.repeats,
                             {{"bytes_per_second", rate},
                              {"of_memory", rate / bandwidth_},
                              {"flops_per_second", static_cast<double>(cost.flops) / seconds},
                              {"launches", static_cast<double>(cost.launches)}}});
  }

  size_t copies_of(int64_t bytes) const {
    const auto spread = static_cast<int64_t>(options_.copy_bytes / 4);
    return std::clamp<int64_t>((spread + bytes - 1) / bytes, 1, kMostCopies);
  }

  template <class T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = backend_.allocate(values.size() * sizeof(T));
    backend_.copy_from_host(buffer.view(DType::u8, {static_cast<int64_t>(buffer.bytes())}),
                            values.data(), stream_);
    backend_.synchronize(stream_);
    return buffer;
  }

  // The bits of bf16s in (-1, 1). Zeros would be faster.
  std::vector<uint16_t> random_values(int64_t n) {
    std::vector<uint16_t> values(n);
    for (uint16_t& value : values) {
      value = to_bf16(static_cast<float>(random_()) * 0x1p-31f - 1.0f).bits;
    }
    return values;
  }

  const DeviceOpBenchOptions& options_;
  BenchDevice& device_;
  Backend& backend_;
  Stream stream_;
  double bandwidth_;
  std::mt19937 random_;
  RandomMatrices matrices_;
  uint64_t last_key_ = 0;
  std::vector<Measurement> measurements_;
};

}  // namespace

int run_device_op_bench(const DeviceOpBenchOptions& options, BenchDevice& device) {
  CHECK(device.gpu && options.repeats > 0 && !options.rows.empty());
  check_bench_report(options.json);
  DeviceOpBench bench(options, device);
  for (const std::filesystem::path& shape : options.shapes) {
    bench.run(shape.stem().string(), ModelConfig::load_shape(shape));
  }
  std::printf("%s, %s, a copy moves %.1f GB/s\n\n", device.name.c_str(),
              device.backend->description().c_str(), bench.bandwidth() / 1e9);
  std::printf("| operation | us | GB/s | of a copy | TFLOP/s |\n");
  std::printf("| --- | ---: | ---: | ---: | ---: |\n");
  for (const Measurement& m : bench.measurements()) {
    std::printf("| %s | %.2f | %.1f | %.1f %% | %.1f |\n", m.name.c_str(), m.seconds * 1e6,
                m.counters.at("bytes_per_second") / 1e9, 100 * m.counters.at("of_memory"),
                m.counters.at("flops_per_second") / 1e12);
  }
  if (options.json) {
    write_bench_report(*options.json,
                       {{"device", device.name},
                        {"backend", device.backend->description()},
                        {"memory_bytes_per_second", std::to_string(bench.bandwidth())}},
                       bench.measurements());
  }
  return 0;
}

}  // namespace outrider
