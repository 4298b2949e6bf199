// The kernels that a plan counts are those of the recorded graph.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/operation_cost.h"
#include "comm/self_communicator.h"
#include "model/pass_cost.h"
#include "model/transformer.h"
#include "testing/checkpoints.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

constexpr int64_t kMaxRows = 80;

// Nodes of the graph of what is enqueued, which has run once before: what is done once (sizes of
// shared memory) is done.
int64_t recorded_nodes(CudaBackend& backend, Stream& stream, const std::function<void()>& enqueue) {
  enqueue();
  backend.synchronize(stream);
  auto* const handle = static_cast<cudaStream_t>(stream.handle);
  EXPECT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  enqueue();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  size_t count = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
  cudaGraphDestroy(graph);
  return static_cast<int64_t>(count);
}

// Nodes of the graph of one pass of `rows` rows of a sequence, all with logits where `logits`. With
// one rank nothing is exchanged, and the pass copies nothing: all of them are kernels.
int64_t recorded_kernels(Transformer& model, KvCache& cache, CudaBackend& backend, int64_t rows,
                         int64_t num_logits) {
  Stream stream = backend.make_stream();
  cache.deal_pages(stream);
  std::vector<int32_t> values(4 * rows);
  for (int64_t i = 0; i < rows; ++i) {
    values[i] = 1;                                   // tokens
    values[rows + i] = static_cast<int32_t>(i);      // positions
    values[3 * rows + i] = static_cast<int32_t>(i);  // rows with logits; slots are 0
  }
  const Buffer columns = backend.allocate(values.size() * sizeof(int32_t));
  backend.copy_from_host(columns.view(DType::i32, {4 * rows}), values.data(), stream);
  const auto column = [&](int64_t i, int64_t n) {
    return columns.view(DType::i32, {n}, i * rows * sizeof(int32_t));
  };
  const int64_t vocab = model.shard().vocab.size();
  const Buffer logits = backend.allocate((num_logits + 1) * vocab * sizeof(float));
  const Batch batch = {column(0, rows), column(1, rows), column(2, rows), column(3, num_logits)};
  return recorded_nodes(backend, stream, [&] {
    model.forward(batch, cache, logits.view(DType::f32, {num_logits, vocab}), stream);
  });
}

void expect_as_planned(Numerics numerics) {
  for (const char* name : {"tiny", "tiny-odd", "tiny-gpt2"}) {
    CudaBackend backend(0, numerics);
    const auto self = make_self_communicator();
    Transformer model(test_checkpoint(name), backend, *self, kMaxRows, 0);
    KvCache cache = model.make_kv_cache(8, 1);
    for (const auto& [rows, num_logits] :
         {std::pair<int64_t, int64_t>{1, 1}, {8, 8}, {9, 2}, {16, 0}, {64, 64}, {80, 70}}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(rows) + " rows");
      const PassShape shape = {
          {.each = rows}, num_logits, model.config().max_position_embeddings, numerics};
      EXPECT_EQ(pass_cost(model.config(), model.shard(), shape).operations.launches,
                recorded_kernels(model, cache, backend, rows, num_logits));
    }
  }
}

TEST(LaunchCount, IsThatOfTheRecordedPass) { expect_as_planned(Numerics::exact); }

// The emulated library's products are one launch each.
TEST(LaunchCount, IsThatOfTheRecordedPassWithFastNumerics) {
  if (!emulated_gpus()) GTEST_SKIP() << "cuBLASLt may make a product in several launches";
  expect_as_planned(Numerics::fast);
}

// Page tables for so many positions that their rows cannot all attend together: it is what the rows
// see that counts, and it does not show.
TEST(LaunchCount, OfAttentionDoesNotGoByThePageTables) {
  constexpr AttentionShape kShape = {
      .num_heads = 8, .num_kv_heads = 1, .head_dim = 128, .group_size = 8};
  constexpr int64_t kRows = 48, kPages = kRows / kPageTokens, kMaxPositions = 131072;
  constexpr int64_t kTable = kMaxPositions / kPageTokens;
  CudaBackend backend(0);
  Stream stream = backend.make_stream();
  backend.reserve_attention(kRows, kMaxPositions, kShape);
  std::vector<int32_t> map(2 * kRows + kTable);  // positions, sequences, the page table
  std::iota(map.begin(), map.begin() + kRows, 0);
  std::iota(map.begin() + 2 * kRows, map.begin() + 2 * kRows + kPages, 0);
  const Buffer indices = backend.allocate(map.size() * sizeof(int32_t));
  backend.copy_from_host(indices.view(DType::i32, {std::ssize(map)}), map.data(), stream);
  const auto view_of_map = [&](int64_t first, std::initializer_list<int64_t> extents) {
    return indices.view(DType::i32, extents, first * sizeof(int32_t));
  };
  std::vector<float> values(kRows * kShape.qkv_width());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
  const Buffer input = backend.allocate(values.size() * sizeof(float));
  const TensorView qkv = input.view(DType::f32, {kRows, kShape.qkv_width()});
  backend.copy_from_host(qkv, values.data(), stream);
  const int64_t width = kShape.num_heads * kShape.head_dim;
  const Buffer output = backend.allocate(kRows * width * sizeof(bf16));
  const Buffer k = backend.allocate(kPages * kPageTokens * kShape.head_dim * sizeof(bf16));
  const Buffer v = backend.allocate(k.bytes());
  const std::initializer_list<int64_t> of_pages = {kPages, 1, kPageTokens, kShape.head_dim};
  std::vector<std::vector<bf16>> results;
  for (const auto& [context, parts] :
       {std::pair<int64_t, int64_t>{backend.padded_context(kRows, kRows), 1}, {INT64_MAX, 2}}) {
    const RowMap rows = {.positions = view_of_map(0, {kRows}),
                         .sequences = view_of_map(kRows, {kRows}),
                         .page_tables = view_of_map(2 * kRows, {1, kTable}),
                         .context = context};
    EXPECT_EQ(cuda_attention_parts(kRows, context, kMaxPositions, kShape), parts);
    const TensorView y = output.view(DType::bf16, {kRows, width});
    EXPECT_EQ(recorded_nodes(backend, stream,
                             [&] {
                               backend.rope_and_attend(qkv, {}, {}, k.view(DType::bf16, of_pages),
                                                       v.view(DType::bf16, of_pages), y, rows,
                                                       kShape, stream);
                             }),
              1 + 2 * parts);
    results.emplace_back(kRows * width);
    backend.copy_to_host(results.back().data(), y, stream);
    backend.synchronize(stream);
  }
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), output.bytes()), 0);
}

}  // namespace
}  // namespace outrider
