// A drafting model on the CUDA backend, which pads what it replays.
#include "spec/drafter.h"

#include <gtest/gtest.h>

#include <vector>

#include "testing/checkpoints.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;
using DraftLogits = std::vector<float>;

constexpr int64_t kSlots = 8;

class CudaModelDrafter {
 public:
  explicit CudaModelDrafter(int64_t max_rows)
      : drafter_(test_checkpoint("tiny-draft"), *backend_, kSlots * 16, kSlots, max_rows, nullptr) {
    drafter_.cache().deal_pages(stream_);
  }

  // A round as a step has it: of logits as many as a replayed pass.
  std::vector<DraftLogits> draft(const std::vector<Tokens>& contexts) {
    const auto count = static_cast<int64_t>(contexts.size());
    const int64_t padded = backend_->padded_rows(count), vocab = drafter_.config().vocab_size;
    const Buffer buffer = backend_->allocate(sizeof(float) * padded * vocab);
    const TensorView logits = buffer.view(DType::f32, {padded, vocab});
    std::vector<DraftContext> views;
    for (int64_t slot = 0; slot < count; ++slot) {
      views.push_back({.slot = slot, .tokens = contexts[slot]});
    }
    drafter_.begin_step();
    const uint64_t key = drafter_.prepare(views, logits, stream_);
    backend_->replay(key, stream_, /*collective=*/false, [&] { drafter_.enqueue(stream_); });
    std::vector<DraftLogits> rows(count, DraftLogits(vocab));
    for (int64_t i = 0; i < count; ++i) {
      backend_->copy_to_host(rows[i].data(), logits.rows(i, i + 1), stream_);
    }
    backend_->synchronize(stream_);
    return rows;
  }

 private:
  const std::unique_ptr<Backend> backend_ = make_cuda_backend(0);
  Stream stream_ = backend_->make_stream();
  ModelDrafter drafter_;
};

// Padded by itself, the last of several passes would have more rows of logits than are left.
TEST(CudaDrafter, ARoundOfSeveralPassesIsOneOfOnePass) {
  for (const int64_t max_rows : {4, 10, 12, 16}) {
    CudaModelDrafter several(max_rows), one(256);
    std::vector<Tokens> contexts(kSlots, Tokens(2));
    for (int round = 0; round < 3; ++round) {
      for (size_t slot = 0; slot < kSlots; ++slot) {
        contexts[slot].push_back(static_cast<int32_t>(31 * slot + 7 * round));
        contexts[slot].push_back(static_cast<int32_t>(101 + 3 * slot + round));
      }
      EXPECT_EQ(several.draft(contexts), one.draft(contexts))
          << "passes of " << max_rows << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace outrider
