#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_product.cuh"
#include "kernels/cuda/linear_stream.cuh"
#include "kernels/cuda/linear_tile.cuh"

namespace outrider::cuda {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Grid: rows.
__global__ void pack_kernel(const bf16* source, int64_t first_row, int64_t n, int64_t k,
                            bool gate_up, int64_t steps, bf16* packed) {
  const int64_t row = blockIdx.x;
  const int64_t to = gate_up ? interleaved(first_row + row, n / 2) : first_row + row;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    packed[packed_index(to, i, steps)] = source[row * k + i];
  }
}

// Grid: rows of y.
__global__ void embed_kernel(const bf16* packed, const int32_t* tokens, int64_t first_token,
                             float* y, int64_t n, int64_t k, int64_t steps) {
  const int64_t row = tokens[blockIdx.x] - first_token;
  const bool here = 0 <= row && row < n;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    y[blockIdx.x * k + i] = here ? widen(packed[packed_index(row, i, steps)]) : 0.0f;
  }
}

template <int kRows, class Epilogue>
void launch_stream(const Product& p, cudaStream_t stream) {
  launch_overlapped(
      p.aligned ? stream_kernel<kRows, true, Epilogue> : stream_kernel<kRows, false, Epilogue>,
      dim3(divide_up(p.rows, kRows), p.panels), p.splits * kWarp, 0, stream, p);
}

template <int kRows, int kOutputs, class Epilogue>
void launch_tile(const Product& p, cudaStream_t stream) {
  using Tile = TileShape<kRows, kOutputs>;
  launch_overlapped(tile_kernel<kRows, kOutputs, Epilogue>,
                    dim3(divide_up(p.rows, kRows), divide_up(p.panels, Tile::kTilePanels)),
                    Tile::kThreads, Tile::kSharedBytes, stream, p);
}

template <class Epilogue>
void launch_product(const bf16* x, const void* packed, const float* bias,
                    typename Epilogue::Element* y, int64_t rows, int64_t n, int64_t k,
                    LinearTile tile, cudaStream_t stream) {
  Product p;
  p.x = x;
  p.w = static_cast<const uint4*>(packed);
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
  if (tile == LinearTile{8, 16}) return launch_stream<8, Epilogue>(p, stream);
  if (tile == LinearTile{16, 16}) return launch_stream<16, Epilogue>(p, stream);
  if (tile == LinearTile{32, 64}) return launch_tile<32, 64, Epilogue>(p, stream);
  if (tile == LinearTile{32, 128}) return launch_tile<32, 128, Epilogue>(p, stream);
  if (tile == LinearTile{64, 64}) return launch_tile<64, 64, Epilogue>(p, stream);
  if (tile == LinearTile{64, 128}) return launch_tile<64, 128, Epilogue>(p, stream);
  CHECK((tile == LinearTile{128, 128}));
  launch_tile<128, 128, Epilogue>(p, stream);
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

size_t packed_bytes(int64_t n, int64_t k) {
  return divide_up(n, kPanelRows) * divide_up(k, kStepK) * kStepChunks * sizeof(uint4);
}

void pack(const bf16* source, int64_t rows, int64_t first_row, int64_t n, int64_t k, bool gate_up,
          void* packed, cudaStream_t stream) {
  launch(pack_kernel, static_cast<unsigned>(rows), 256, 0, stream, source, first_row, n, k, gate_up,
         divide_up(k, kStepK), static_cast<bf16*>(packed));
}

void linear(const bf16* x, const void* packed, const float* bias, float* y, int64_t rows, int64_t n,
            int64_t k, LinearTile tile, cudaStream_t stream) {
  launch_product<AsItIs>(x, packed, bias, y, rows, n, k, tile, stream);
}

void linear_activated(const bf16* x, const void* packed, const float* bias, Activation activation,
                      bf16* y, int64_t rows, int64_t n, int64_t k, LinearTile tile,
                      cudaStream_t stream) {
  const auto run = activation == Activation::swiglu ? launch_product<Swiglu> : launch_product<Gelu>;
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
