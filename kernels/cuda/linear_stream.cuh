// linear in small tiles: a block is a panel, a warp one part of k. Weights go from memory straight
// into registers, with no barrier before the parts are added.
#pragma once

#include "kernels/cuda/linear_product.cuh"

namespace outrider::cuda {

constexpr int kMaxSplits = 16;     // of linear_splits
constexpr int kPartialPitch = 20;  // floats from row to row of a partial sum: no bank twice

// Steps whose loads are under way in each warp: two blocks of a multiprocessor have the registers.
template <int kTiles>
constexpr int kStepsAhead = kTiles == 1 ? 4 : 2;

template <class Weights, int kTiles>
struct StreamedStep {
  uint4 x[kTiles];
  uint4 w[Weights::kLaneChunks];
};

// A lane's view of a panel and of its row in each 8 of x, at some step.
template <class Weights, int kTiles, bool kAligned>
struct LaneStream {
  const uint4* w;
  const bf16* x;
  int64_t tile_stride;  // elements of x from its row in one tile to that in the next
  int num_tiles;        // in which it has a row
  int num_elements;     // of a row of x from here on

  __device__ LaneStream(const Product& p, int panel, int first_row, int step) {
    const int lane = threadIdx.x % kWarp;
    const int row = first_row + lane / 4;
    const int element = step * kStepK + lane % 4 * kChunk;
    w = p.panel<Weights>(panel) + static_cast<int64_t>(step) * Weights::kStepChunks + lane;
    x = p.row(row) + element;
    tile_stride = static_cast<int64_t>(kMmaRows) * p.k;
    num_tiles = (p.rows - row + kMmaRows - 1) / kMmaRows;
    num_elements = p.k - element;
  }

  // What it needs `ahead` steps from here.
  __device__ void load_weights(int ahead, StreamedStep<Weights, kTiles>& step) const {
#pragma unroll
    for (int i = 0; i < Weights::kLaneChunks; ++i) {
      step.w[i] = load_streaming_16(w + ahead * Weights::kStepChunks + i * kWarp);
    }
  }
  __device__ void load_rows(int ahead, StreamedStep<Weights, kTiles>& step) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      step.x[tile] = make_uint4(0, 0, 0, 0);
      if (tile >= num_tiles || ahead * kStepK >= num_elements) continue;
      const bf16* from = x + tile * tile_stride;
      if constexpr (kAligned) {
        step.x[tile] = *reinterpret_cast<const uint4*>(from + ahead * kStepK);
      } else {
        step.x[tile] = gather_chunk(from, ahead * kStepK, num_elements);
      }
    }
  }

  __device__ void advance(int steps) {
    w += steps * Weights::kStepChunks;
    x += steps * kStepK;
    num_elements -= steps * kStepK;
  }
};

// This warp's part of k: `steps` of a panel. The first weights, which nobody writes, are on their
// way before the kernels before this one are over.
template <class Weights, int kTiles, bool kAligned>
__device__ void stream_part(LaneStream<Weights, kTiles, kAligned> stream, int steps,
                            float (&sums)[kTiles][4]) {
  constexpr int kAhead = kStepsAhead<kTiles>;
  StreamedStep<Weights, kTiles> loaded[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < steps) stream.load_weights(i, loaded[i]);
  }
  wait_for_earlier_kernels();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < steps) stream.load_rows(i, loaded[i]);
  }
#pragma unroll 1
  for (; steps > 0; steps -= kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i >= steps) break;
      const StepWeights w = Weights::widen(loaded[i].w);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        multiply_step(sums[tile], w, loaded[i].x[tile]);
      }
      if (i + kAhead >= steps) continue;
      stream.load_weights(i + kAhead, loaded[i]);
      stream.load_rows(i + kAhead, loaded[i]);
    }
    stream.advance(kAhead);
  }
}

// Grid: tiles of rows by panels, so that blocks that share weights are neighbours. Block: p.splits
// warps.
template <int kRows, bool kAligned, class Weights, class Epilogue>
__global__ void __launch_bounds__(kMaxSplits* kWarp, 2) stream_kernel(Product p) {
  constexpr int kTiles = kRows / kMmaRows;
  __shared__ float partial[kMaxSplits][kRows][kPartialPitch];
  const int split = threadIdx.x / kWarp;
  const int first_row = blockIdx.x * kRows;
  float sums[kTiles][4] = {};
  const int begin = p.part_begin(split);
  stream_part(LaneStream<Weights, kTiles, kAligned>(p, blockIdx.y, first_row, begin),
              p.part_begin(split + 1) - begin, sums);

  const int g = threadIdx.x % kWarp / 4;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      partial[split][tile * kMmaRows + 2 * t + j % 2][g + j / 2 * 8] = sums[tile][j];
    }
  }
  __syncthreads();
  // A warp's lanes stay together, so that each has the sum of the lane 8 further on.
  constexpr int kColumns = Epilogue::kColumns;
  for (int i = threadIdx.x; i < kRows * kPanelRows; i += blockDim.x) {
    const int row = i / kPanelRows, in_panel = i % kPanelRows;
    float total = 0.0f;
    for (int s = 0; s < p.splits; ++s) total += partial[s][row][in_panel];
    float further = 0.0f;
    if constexpr (kColumns < kPanelRows) further = __shfl_down_sync(kAllLanes, total, 8);
    const int column = blockIdx.y * kColumns + in_panel;
    if (in_panel >= kColumns || column >= p.columns || first_row + row >= p.rows) continue;
    Column<Weights, Epilogue>(p, column).store(first_row + row, total, further);
  }
}

}  // namespace outrider::cuda
