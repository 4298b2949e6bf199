// The kernels that a plan counts are those of the recorded graph.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "comm/self_communicator.h"
#include "model/pass_cost.h"
#include "model/transformer.h"
#include "testing/checkpoints.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

constexpr int64_t kMaxRows = 80;

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
  const auto pass = [&] {
    model.forward(batch, cache, logits.view(DType::f32, {num_logits, vocab}), stream);
  };
  pass();  // what is done once (sizes of shared memory) is done
  backend.synchronize(stream);
  auto* const handle = static_cast<cudaStream_t>(stream.handle);
  EXPECT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  pass();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  size_t count = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
  cudaGraphDestroy(graph);
  return static_cast<int64_t>(count);
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

}  // namespace
}  // namespace outrider
