// linear in large tiles: a block is a tile of rows by outputs. Both operands pass through shared
// memory, several steps under way; the parts of k follow one another.
#pragma once

#include "kernels/cuda/linear_product.cuh"

namespace outrider::cuda {

template <int kRows, int kOutputs, class Format>
struct TileShape {
  using Weights = Format;
  static constexpr int kTileRows = kRows;
  static constexpr int kTilePanels = kOutputs / kPanelRows;
  // A warp: some panels by some groups of 8 rows.
  static constexpr int kWarpPanels = kRows == 32 ? 1 : 2;
  static constexpr int kWarpGroups = kRows == 128 ? 8 : 4;
  static constexpr int kWarpsAlongOutputs = kTilePanels / kWarpPanels;
  static constexpr int kWarpsAlongRows = kRows / kMmaRows / kWarpGroups;
  static constexpr int kThreads = kWarpsAlongOutputs * kWarpsAlongRows * kWarp;
  // A stage: one step of all panels, then of all rows, in the order in which lanes read them.
  static constexpr int kPanelChunks = kTilePanels * Weights::kStepChunks;
  static constexpr int kRowChunks = kRows * kStepK / kChunk;
  static constexpr int kStageChunks = kPanelChunks + kRowChunks;
  // 96 KiB is what a block may have on every GPU from sm_80 on, nearly.
  static constexpr int kStages = std::min<int>(12, 96 * 1024 / (kStageChunks * sizeof(uint4)));
  static constexpr int kSharedBytes = kStages * kStageChunks * sizeof(uint4);
};

// Where a warp's share of a tile begins.
struct WarpPlace {
  int panel;  // in the tile
  int group;  // of 8 rows, in the tile
};

template <class Tile>
using TileSums = float[Tile::kWarpPanels][Tile::kWarpGroups][4];

// body(i) for each i < kCount, dealt out to kThreads threads.
template <int kCount, int kThreads, class Body>
__device__ void deal_out(Body body) {
#pragma unroll
  for (int first = 0; first < kCount; first += kThreads) {
    const int i = first + threadIdx.x;
    if (first + kThreads <= kCount || i < kCount) body(i);
  }
}

// Begins to bring one step of a tile into a stage.
template <class Tile>
__device__ void fill_stage(const Product& p, int first_row, int first_panel, int step,
                           uint4* stage) {
  using Weights = typename Tile::Weights;
  constexpr int kChunks = Weights::kStepChunks;
  deal_out<Tile::kPanelChunks, Tile::kThreads>([&](int i) {
    const int panel = first_panel + i / kChunks;
    const bool valid = panel < p.panels;
    const uint4* from = p.panel<Weights>(valid ? panel : 0) + i % kChunks;
    cp_async_16(stage + i, from + static_cast<int64_t>(step) * kChunks, valid);
  });
  deal_out<Tile::kRowChunks, Tile::kThreads>([&](int i) {
    const int row = first_row + i / 4;
    const int element = step * kStepK + i % 4 * kChunk;
    const bool valid = row < p.rows && element < p.k;
    uint4* to = stage + Tile::kPanelChunks + i;
    if (p.aligned) {
      cp_async_16(to, valid ? p.row(row) + element : p.x, valid);
    } else {
      *to = valid ? gather_chunk(p.row(row), element, p.k) : make_uint4(0, 0, 0, 0);
    }
  });
}

// A warp's share of a step.
template <class Tile>
__device__ void multiply_stage(const uint4* stage, WarpPlace place, TileSums<Tile>& sums) {
  using Weights = typename Tile::Weights;
  const int lane = threadIdx.x % kWarp;
  StepWeights w[Tile::kWarpPanels];
#pragma unroll
  for (int panel = 0; panel < Tile::kWarpPanels; ++panel) {
    const uint4* from = stage + (place.panel + panel) * Weights::kStepChunks + lane;
    uint4 chunks[Weights::kLaneChunks];
#pragma unroll
    for (int i = 0; i < Weights::kLaneChunks; ++i) chunks[i] = from[i * kWarp];
    w[panel] = Weights::widen(chunks);
  }
  const uint4* rows = stage + Tile::kPanelChunks + place.group * kWarp + lane;
#pragma unroll
  for (int group = 0; group < Tile::kWarpGroups; ++group) {
    const uint4 x = rows[group * kWarp];
#pragma unroll
    for (int panel = 0; panel < Tile::kWarpPanels; ++panel) {
      multiply_step(sums[panel][group], w[panel], x);
    }
  }
}

// totals += sums, and the sums begin anew.
template <class Tile>
__device__ void close_part(TileSums<Tile>& totals, TileSums<Tile>& sums) {
#pragma unroll
  for (int panel = 0; panel < Tile::kWarpPanels; ++panel) {
#pragma unroll
    for (int group = 0; group < Tile::kWarpGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        totals[panel][group][j] += sums[panel][group][j];
        sums[panel][group][j] = 0.0f;
      }
    }
  }
}

template <class Epilogue, class Tile>
__device__ void store_tile(const Product& p, int first_row, int first_panel,
                           const TileSums<Tile>& totals) {
  const int g = threadIdx.x % kWarp / 4;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int panel = 0; panel < Tile::kWarpPanels; ++panel) {
#pragma unroll
    for (int half = 0; half < Epilogue::kColumns / 8; ++half) {
      const int index = (first_panel + panel) * Epilogue::kColumns + half * 8 + g;
      if (index >= p.columns) continue;
      const Column<typename Tile::Weights, Epilogue> column(p, index);
#pragma unroll
      for (int group = 0; group < Tile::kWarpGroups; ++group) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int row = first_row + group * kMmaRows + 2 * t + j;
          const float(&of_lane)[4] = totals[panel][group];
          if (row < p.rows) column.store(row, of_lane[half * 2 + j], of_lane[2 + j]);
        }
      }
    }
  }
}

// Grid: tiles along rows by tiles along outputs, so that blocks that share weights are neighbours.
template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads) tile_kernel(Product p) {
  wait_for_earlier_kernels();
  uint4* stages = dynamic_shared<uint4>();
  const int first_row = blockIdx.x * Tile::kTileRows;
  const int first_panel = blockIdx.y * Tile::kTilePanels;
  const int warp = threadIdx.x / kWarp;
  const WarpPlace place = {warp % Tile::kWarpsAlongOutputs * Tile::kWarpPanels,
                           warp / Tile::kWarpsAlongOutputs * Tile::kWarpGroups};
  const auto fill = [&](int step, int stage) {
    if (step < p.steps) {
      fill_stage<Tile>(p, first_row, first_panel, step, stages + stage * Tile::kStageChunks);
    }
    cp_async_commit();
  };
  for (int i = 0; i < Tile::kStages - 1; ++i) fill(i, i);

  TileSums<Tile> sums = {};
  TileSums<Tile> totals = {};
  int stage = 0;
  int step = 0;
  for (int split = 0; split < p.splits; ++split) {
    for (const int end = p.part_begin(split + 1); step < end; ++step) {
      cp_async_wait<Tile::kStages - 2>();
      __syncthreads();  // the step is there, and nobody reads the stage before it any more
      fill(step + Tile::kStages - 1, stage == 0 ? Tile::kStages - 1 : stage - 1);
      multiply_stage<Tile>(stages + stage * Tile::kStageChunks, place, sums);
      stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
    }
    close_part<Tile>(totals, sums);
  }
  store_tile<Epilogue, Tile>(p, first_row + place.group * kMmaRows, first_panel + place.panel,
                             totals);
}

}  // namespace outrider::cuda
