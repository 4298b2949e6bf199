// The CUDA backend: the kernels of kernels/cuda on one device. Operations are enqueued; nothing
// here waits but copies of memory that is not pinned, what makes room for graphs or reserves
// scratch memory, and what runs while weights are loaded.
#pragma once

#include <cuda_runtime.h>

#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/fast_linear.h"
#include "backend/cuda/graphs.h"
#include "kernels/cuda/distribution.h"

namespace outrider {

inline cudaStream_t handle(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

class CudaBackend final : public Backend {
 public:
  // Belongs to the thread that makes it. Throws Error where the device cannot be used.
  explicit CudaBackend(int device, Numerics numerics = Numerics::exact);
  ~CudaBackend() override;

  std::string description() const override;

  Stream make_stream() override;
  Buffer allocate(size_t bytes) override;
  Buffer allocate_pinned(size_t bytes) override;
  void copy_from_host(TensorView to, const void* from, Stream& stream) override;
  void copy_to_host(void* to, TensorView from, Stream& stream) override;
  void copy(TensorView to, TensorView from, Stream& stream) override;
  void synchronize(Stream& stream) override;
  bool replay(uint64_t key, Stream& stream, bool collective,
              const std::function<void()>& enqueue) override;
  void forget_replayed() override { graphs_.clear(); }
  void mark(int mark, Stream& stream) override;
  double seconds_between(int from, int to) const override;
  int64_t padded_rows(int64_t rows) const override;
  int64_t padded_context(int64_t rows, int64_t context) const override;

  PackedWeight pack(std::span<const TensorView> parts, WeightFormat format) override;
  PackedWeight pack_gate_up(std::span<const TensorView> parts, WeightFormat format) override;

  void embed(const PackedWeight& table, TensorView tokens, int64_t first_token, TensorView y,
             Stream& stream) override;
  void linear(const PackedWeight& weight, TensorView x, TensorView bias, TensorView y,
              Stream& stream) override;
  void linear_activated(const PackedWeight& weight, TensorView x, TensorView bias,
                        Activation activation, TensorView y, Stream& stream) override;
  void rms_norm(TensorView x, TensorView addend, TensorView weight, float epsilon, TensorView y,
                Stream& stream) override;
  void layer_norm(TensorView x, TensorView addend, TensorView weight, TensorView bias,
                  float epsilon, TensorView y, Stream& stream) override;
  void gather_rows(TensorView x, TensorView indices, TensorView y, Stream& stream) override;
  void expand_logits(TensorView x, TensorView tokens, TensorView y, Stream& stream) override;
  void table_logits(TensorView tokens, const LogitTable& table, TensorView y,
                    Stream& stream) override;
  void reserve_activation(int64_t max_rows, int64_t n) override;
  void reserve_attention(int64_t max_rows, int64_t max_positions,
                         const AttentionShape& shape) override;
  void reserve_verification(int64_t max_rows, int64_t vocab_size) override;
  void rope_and_cache(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                      TensorView v_pages, const RowMap& map, const AttentionShape& shape,
                      Stream& stream) override;
  void attention(TensorView qkv, TensorView k_pages, TensorView v_pages, TensorView y,
                 const RowMap& map, const AttentionShape& shape, Stream& stream) override;
  void rope_and_attend(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                       TensorView v_pages, TensorView y, const RowMap& map,
                       const AttentionShape& shape, Stream& stream) override;

  void copy_tokens(const TokenCopy* copies, int64_t n, Stream& stream) override;
  void edit_logits(const LogitEdit* edits, int64_t n, int64_t largest_size,
                   Stream& stream) override;
  void sample_drafts(TensorView logits, const DraftRow* rows, int64_t n, bool all_greedy,
                     int32_t* drafted, RowDistribution* q, float* q_logits,
                     Stream& stream) override;
  void verify_summary(TensorView logits, int32_t first_token, const VerifyRow* rows,
                      int64_t num_slots, SummaryMessage to, Stream& stream) override;
  void combine_and_accept(SummaryMessages all, const VerifyRow* rows, int64_t num_rows,
                          RowDistribution* p, uint64_t* disagreeing,
                          const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                          Stream& stream) override;
  void resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size,
                    Stream& stream) override;
  void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                   Stream& stream) override;
  void race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                 const Verdict* verdicts, RaceResult* results, Stream& stream) override;
  void commit_step(const SequenceToVerify* sequences, int64_t n, const RaceResult* results,
                   int ranks, Verdict* verdicts, Stream& stream) override;
  void race_and_commit(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                       Verdict* verdicts, RaceResult* results, Stream& stream) override;

 private:
  Numerics numerics() const { return fast_linear_ ? Numerics::fast : Numerics::exact; }
  PackedWeight pack(std::span<const TensorView> parts, WeightFormat format, bool gate_up);
  // Whether the product is cuBLASLt's: numerics are fast, weights bf16, rows many, and it can.
  bool is_fast(const PackedWeight& weight, TensorView x, TensorView bias);
  // y: [rows, n]
  void linear_fast(const PackedWeight& weight, TensorView x, TensorView bias, float* y,
                   Stream& stream);
  void reserve(Buffer& scratch, size_t bytes);
  cuda::VerifyScratch verify_scratch(int64_t rows, int64_t vocab_size) const;

  int device_;
  int num_multiprocessors_ = 0;
  std::vector<cudaStream_t> streams_;
  Graphs graphs_;
  cudaEvent_t marks_[kMaxMarks] = {};
  std::optional<FastLinear> fast_linear_;  // where numerics are fast
  Buffer activation_scratch_, attention_scratch_, verify_scratch_, verify_arrivals_;
  // Loading: a piece of weights on its way, twice, so that one is read from the file while the
  // other travels.
  static constexpr size_t kPieceBytes = size_t{32} << 20;
  struct Piece {
    Buffer pinned, device;
    cudaEvent_t packed = nullptr;
  };
  Piece pieces_[2];
  Stream loading_;
};

}  // namespace outrider
