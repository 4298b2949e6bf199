// The CPU backend: the kernels of kernels/cpu on host memory, each call done when it returns.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa.h"

namespace outrider {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(cpu::Isa isa) : isa_(isa) { CHECK(cpu::isa_available(isa)); }

  std::string description() const override;

  Stream make_stream() override { return {}; }
  Buffer allocate(size_t bytes) override;
  Buffer allocate_pinned(size_t bytes) override { return allocate(bytes); }
  void copy_from_host(TensorView to, const void* from, Stream& stream) override;
  void copy_to_host(void* to, TensorView from, Stream& stream) override;
  void copy(TensorView to, TensorView from, Stream& stream) override;
  void synchronize(Stream&) override {}
  bool replay(uint64_t, Stream&, bool, const std::function<void()>& enqueue) override {
    enqueue();
    return false;
  }
  void forget_replayed() override {}
  void mark(int mark, Stream&) override { marks_.at(mark) = Clock::now(); }
  double seconds_between(int from, int to) const override {
    return std::chrono::duration<double>(marks_.at(to) - marks_.at(from)).count();
  }
  int64_t padded_rows(int64_t rows) const override { return rows; }
  int64_t padded_context(int64_t, int64_t context) const override { return context; }

  PackedWeight pack(std::span<const TensorView> parts, WeightFormat format) override;
  PackedWeight pack_gate_up(std::span<const TensorView> parts, WeightFormat format) override;
  std::vector<std::span<std::byte>> packed_memory() override;

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
  void reserve_verification(int64_t max_rows, int64_t vocab_size) override {}
  void rope_and_cache(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                      TensorView v_pages, const RowMap& map, const AttentionShape& shape,
                      Stream& stream) override;
  void attention(TensorView qkv, TensorView k_pages, TensorView v_pages, TensorView y,
                 const RowMap& map, const AttentionShape& shape, Stream& stream) override;

  void copy_tokens(const TokenCopy* copies, int64_t n, Stream& stream) override;
  void edit_logits(const LogitEdit* edits, int64_t n, int64_t largest_size,
                   Stream& stream) override;
  void sample_drafts(TensorView logits, const DraftRow* rows, int64_t n, bool, int32_t* drafted,
                     RowDistribution* q, float* q_logits, Stream& stream) override;
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
  using Clock = std::chrono::steady_clock;

  Buffer place_weight(size_t bytes);  // zeroed; a multiple of 64 bytes

  cpu::Isa isa_;
  std::array<Clock::time_point, kMaxMarks> marks_;
  // Weights stand one behind the other, in huge pages whatever their sizes, so that fetching ahead
  // of a product reaches into the next one's weights. They are freed with the backend.
  struct Chunk {
    Buffer memory;
    size_t used;  // bytes
  };
  std::vector<Chunk> weights_;
  size_t weights_given_ = 0;   // that packed_memory has told of, and which take no more
  Buffer activation_scratch_;  // of a product, before its activation
  Buffer attention_scratch_;   // for the longest sequence
};

}  // namespace outrider
