#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_product.cuh"
#include "kernels/cuda/linear_stream.cuh"
#include "kernels/cuda/linear_tile.cuh"

namespace outrider::cuda {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes of all panels; the scales are behind them.
template <class Weights>
size_t panel_bytes(int64_t n, int64_t k) {
  return divide_up(n, kPanelRows) * divide_up(k, kStepK) * Weights::kStepChunks * sizeof(uint4);
}

// Grid: rows. scales: [rows], and packed_scales: [n], of formats that have them.
template <class Weights>
__global__ void pack_kernel(const typename Weights::Element* source, const float* scales,
                            int64_t first_row, int64_t n, int64_t k, bool gate_up, int64_t steps,
                            typename Weights::Element* packed, float* packed_scales) {
  const int64_t row = blockIdx.x;
  const int64_t to = gate_up ? interleaved(first_row + row, n / 2) : first_row + row;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    packed[packed_index<Weights>(to, i, steps)] = source[row * k + i];
  }
  if constexpr (Weights::kScaled) {
    if (threadIdx.x == 0) packed_scales[first_row + row] = scales[row];
  }
}

// Grid: rows of y.
__global__ void embed_kernel(const bf16* packed, const int32_t* tokens, int64_t first_token,
                             float* y, int64_t n, int64_t k, int64_t steps) {
  const int64_t row = tokens[blockIdx.x] - first_token;
  const bool here = 0 <= row && row < n;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    y[blockIdx.x * k + i] = here ? widen(packed[packed_index<Bf16Weights>(row, i, steps)]) : 0.0f;
  }
}

template <class Weights>
void launch_pack(const typename Weights::Element* source, const float* scales, int64_t rows,
                 int64_t first_row, int64_t n, int64_t k, bool gate_up, void* packed,
                 cudaStream_t stream) {
  launch(pack_kernel<Weights>, static_cast<unsigned>(rows), 256, 0, stream, source, scales,
         first_row, n, k, gate_up, divide_up(k, kStepK),
         static_cast<typename Weights::Element*>(packed),
         reinterpret_cast<float*>(static_cast<std::byte*>(packed) + panel_bytes<Weights>(n, k)));
}

template <int kRows, class Weights, class Epilogue>
void launch_stream(const Product& p, cudaStream_t stream) {
  launch_overlapped(p.aligned ? stream_kernel<kRows, true, Weights, Epilogue>
                              : stream_kernel<kRows, false, Weights, Epilogue>,
                    dim3(divide_up(p.rows, kRows), p.panels), p.splits * kWarp, 0, stream, p);
}

template <int kRows, int kOutputs, class Weights, class Epilogue>
void launch_tile(const Product& p, cudaStream_t stream) {
  using Tile = TileShape<kRows, kOutputs, Weights>;
  launch_overlapped(tile_kernel<Tile, Epilogue>,
                    dim3(divide_up(p.rows, kRows), divide_up(p.panels, Tile::kTilePanels)),
                    Tile::kThreads, Tile::kSharedBytes, stream, p);
}

template <class Weights, class Epilogue>
void launch_product(const bf16* x, const void* packed, const float* bias,
                    typename Epilogue::Element* y, int64_t rows, int64_t n, int64_t k,
                    LinearTile tile, cudaStream_t stream) {
  Product p;
  p.x = x;
  p.w = static_cast<const uint4*>(packed);
  p.scales = reinterpret_cast<const float*>(static_cast<const std::byte*>(packed) +
                                            panel_bytes<Weights>(n, k));
  p.bias = bias;
  p.y = y;
  p.rows = static_cast<int>(rows);
  p.columns = static_cast<int>(n * Epilogue::kColumns / kPanelRows);
  p.k = static_cast<int>(k);
  p.steps = static_cast<int>(divide_up(k, kStepK));
  p.panels = static_cast<int>(divide_up(n, kPanelRows));
  p.splits = linear_splits(k);
  p.part_steps = p.steps / p.splits;
  p.long_parts = p.steps % p.splits;
  p.aligned = k % kChunk == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(uint4) == 0;
  if (tile == LinearTile{8, 16}) return launch_stream<8, Weights, Epilogue>(p, stream);
  if (tile == LinearTile{16, 16}) return launch_stream<16, Weights, Epilogue>(p, stream);
  if (tile == LinearTile{32, 64}) return launch_tile<32, 64, Weights, Epilogue>(p, stream);
  if (tile == LinearTile{32, 128}) return launch_tile<32, 128, Weights, Epilogue>(p, stream);
  if (tile == LinearTile{64, 64}) return launch_tile<64, 64, Weights, Epilogue>(p, stream);
  if (tile == LinearTile{64, 128}) return launch_tile<64, 128, Weights, Epilogue>(p, stream);
  CHECK((tile == LinearTile{128, 128}));
  launch_tile<128, 128, Weights, Epilogue>(p, stream);
}

// The one for an activation.
template <class Weights>
auto activated_product(Activation activation) {
  return activation == Activation::swiglu ? launch_product<Weights, Swiglu>
                                          : launch_product<Weights, Gelu>;
}

}  // namespace

LinearTile linear_tile(int64_t rows, int64_t n) {
  if (rows <= 8) return {8, 16};
  if (rows <= 16) return {16, 16};
  constexpr int64_t kProcessors = 128;  // of a GPU, about: bits do not depend on it
  LinearTile best = {};
  int64_t least = INT64_MAX;
  for (LinearTile tile : kLinearTiles) {
    const int64_t blocks = divide_up(rows, tile.rows) * divide_up(n, tile.outputs);
    const int64_t cost = divide_up(blocks, kProcessors) * (tile.rows + tile.outputs);
    if (cost < least) {
      least = cost;
      best = tile;
    }
  }
  return best;
}

size_t packed_bytes(int64_t n, int64_t k, WeightFormat format) {
  return format == WeightFormat::int8 ? panel_bytes<Int8Weights>(n, k) + n * sizeof(float)
                                      : panel_bytes<Bf16Weights>(n, k);
}

void pack(const bf16* source, int64_t rows, int64_t first_row, int64_t n, int64_t k, bool gate_up,
          void* packed, cudaStream_t stream) {
  launch_pack<Bf16Weights>(source, nullptr, rows, first_row, n, k, gate_up, packed, stream);
}

void pack_int8(const int8_t* source, const float* scales, int64_t rows, int64_t first_row,
               int64_t n, int64_t k, bool gate_up, void* packed, cudaStream_t stream) {
  launch_pack<Int8Weights>(source, scales, rows, first_row, n, k, gate_up, packed, stream);
}

void linear(const bf16* x, const void* packed, const float* bias, float* y, int64_t rows, int64_t n,
            int64_t k, WeightFormat format, LinearTile tile, cudaStream_t stream) {
  const auto run = format == WeightFormat::int8 ? launch_product<Int8Weights, AsItIs>
                                                : launch_product<Bf16Weights, AsItIs>;
  run(x, packed, bias, y, rows, n, k, tile, stream);
}

void linear_activated(const bf16* x, const void* packed, const float* bias, Activation activation,
                      bf16* y, int64_t rows, int64_t n, int64_t k, WeightFormat format,
                      LinearTile tile, cudaStream_t stream) {
  const auto run = format == WeightFormat::int8 ? activated_product<Int8Weights>(activation)
                                                : activated_product<Bf16Weights>(activation);
  run(x, packed, bias, y, rows, n, k, tile, stream);
}

void embed(const void* packed, const int32_t* tokens, int64_t first_token, float* y, int64_t rows,
           int64_t n, int64_t k, cudaStream_t stream) {
  // Not overlapped: a pass begins when those before it have ended. Attention relies on it, which
  // reads their keys and values before it waits.
  launch(embed_kernel, static_cast<unsigned>(rows), 256, 0, stream,
         static_cast<const bf16*>(packed), tokens, first_token, y, n, k, divide_up(k, kStepK));
}

}  // namespace outrider::cuda
