// A Backend and a Communicator that compute nothing and count what they are asked for, from the
// views that they are given: what plans count is compared with it.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "backend/backend.h"
#include "backend/operation_cost.h"
#include "backend/shape_checks.h"
#include "comm/communicator.h"
#include "comm/exchange_cost.h"

namespace outrider {

// Memory is the host's and zero; copies are made, so that positions can be read.
class MeteringBackend final : public Backend {
 public:
  explicit MeteringBackend(Numerics numerics = Numerics::exact) : numerics_(numerics) {}

  const OperationCost& cost() const { return cost_; }
  int64_t allocated_bytes() const {
    return allocated_bytes_ + activation_scratch_bytes_ + attention_scratch_bytes_ +
           verify_scratch_bytes_ + verify_arrivals_bytes_;
  }
  int64_t packed_bytes() const { return packed_bytes_; }
  size_t num_replayed() const { return replayed_.size(); }  // different passes
  void forget_costs() { cost_ = {}; }

  std::string description() const override { return "metering"; }
  Stream make_stream() override { return {}; }
  Buffer allocate(size_t bytes) override {
    allocated_bytes_ += static_cast<int64_t>(bytes);
    return allocate_host(bytes);
  }
  Buffer allocate_pinned(size_t bytes) override { return allocate_host(bytes); }
  void copy_from_host(TensorView to, const void* from, Stream&) override {
    if (to.bytes() > 0) std::memcpy(to.raw(), from, to.bytes());
  }
  void copy_to_host(void* to, TensorView from, Stream&) override {
    if (from.bytes() > 0) std::memcpy(to, from.raw(), from.bytes());
  }
  void copy(TensorView to, TensorView from, Stream&) override {
    if (to.bytes() > 0) std::memcpy(to.raw(), from.raw(), to.bytes());
  }
  void synchronize(Stream&) override {}
  bool replay(uint64_t key, Stream&, bool, const std::function<void()>& enqueue) override {
    replayed_.insert(key);
    enqueue();
    return false;
  }
  void forget_replayed() override {}
  void mark(int, Stream&) override {}
  double seconds_between(int, int) const override { return 0; }
  int64_t padded_rows(int64_t rows) const override { return cuda_padded_rows(rows); }
  int64_t padded_context(int64_t rows, int64_t context) const override {
    return cuda_padded_context(rows, context);
  }

  PackedWeight pack(std::span<const TensorView> parts, WeightFormat format) override {
    PackedWeight packed;
    packed.format = format;
    packed.k = parts[0].extent(1);
    for (const TensorView& part : parts) packed.n += part.extent(0);
    packed_bytes_ += cuda_packed_bytes(packed.n, packed.k, format);
    return packed;
  }

  PackedWeight pack_gate_up(std::span<const TensorView> parts, WeightFormat format) override {
    PackedWeight packed = pack(parts, format);
    packed.gate_up = true;
    return packed;
  }

  void embed(const PackedWeight& table, TensorView tokens, int64_t, TensorView y,
             Stream&) override {
    check_embed(table, tokens, y);
    cost_ += embed_cost(tokens.extent(0), y.extent(1));
  }
  void linear(const PackedWeight& weight, TensorView x, TensorView bias, TensorView y,
              Stream&) override {
    check_linear(weight, x, bias, y);
    cost_ += linear_cost(x.extent(0), weight.n, weight.k, bias.raw() != nullptr, numerics_,
                         weight.format);
  }
  void linear_activated(const PackedWeight& weight, TensorView x, TensorView bias,
                        Activation activation, TensorView y, Stream&) override {
    check_linear_activated(weight, x, bias, activation, y);
    cost_ += linear_activated_cost(x.extent(0), y.extent(1), weight.k, bias.raw() != nullptr,
                                   activation, numerics_, weight.format);
  }
  void rms_norm(TensorView x, TensorView addend, TensorView, float, TensorView, Stream&) override {
    cost_ += rms_norm_cost(x.extent(0), x.extent(1), addend.raw() != nullptr);
  }
  void layer_norm(TensorView x, TensorView addend, TensorView, TensorView, float, TensorView,
                  Stream&) override {
    cost_ += layer_norm_cost(x.extent(0), x.extent(1), addend.raw() != nullptr);
  }
  void gather_rows(TensorView x, TensorView indices, TensorView y, Stream&) override {
    check_gather_rows(x, indices, y);
    cost_ += gather_rows_cost(y.extent(0), y.extent(1));
  }
  void expand_logits(TensorView x, TensorView, TensorView y, Stream&) override {
    cost_ += expand_logits_cost(y.extent(0), x.extent(1), y.extent(1));
  }

  void table_logits(TensorView, const LogitTable&, TensorView y, Stream&) override {
    cost_ += table_logits_cost(y.extent(0), y.extent(1));
  }

  void reserve_activation(int64_t max_rows, int64_t n) override {
    const int64_t bytes = cuda_activation_scratch_bytes(max_rows, n, numerics_);
    activation_scratch_bytes_ = std::max(activation_scratch_bytes_, bytes);
  }
  void reserve_attention(int64_t max_rows, int64_t max_positions,
                         const AttentionShape& shape) override {
    const int64_t bytes = cuda_attention_scratch_bytes(max_rows, max_positions, shape);
    attention_scratch_bytes_ = std::max(attention_scratch_bytes_, bytes);
  }
  void reserve_verification(int64_t max_rows, int64_t vocab_size) override {
    const int64_t bytes = cuda_verify_scratch_bytes(max_rows, vocab_size);
    verify_scratch_bytes_ = std::max(verify_scratch_bytes_, bytes);
    verify_arrivals_bytes_ = std::max(verify_arrivals_bytes_, cuda_verify_arrivals_bytes(max_rows));
  }

  void rope_and_cache(TensorView, TensorView cos, TensorView, TensorView, TensorView,
                      const RowMap& map, const AttentionShape& shape, Stream&) override {
    const int32_t* positions = map.positions.data<int32_t>();
    const int64_t real = std::count_if(positions, positions + map.positions.size(),
                                       [](int32_t position) { return position >= 0; });
    cost_ += rope_and_cache_cost({.sequences = real}, shape, cos.raw() != nullptr);
  }

  // From the positions themselves, in place of what a pass says of them.
  void attention(TensorView, TensorView, TensorView, TensorView y, const RowMap& map,
                 const AttentionShape& shape, Stream&) override {
    constexpr int64_t kSplitTokens = 128;
    const int32_t* positions = map.positions.data<int32_t>();
    const int32_t* sequences = map.sequences.data<int32_t>();
    const int64_t width = shape.num_heads * shape.head_dim;
    std::map<int32_t, int64_t> lengths;  // of the sequences
    int64_t seen = 0, splits = 0;
    for (int64_t r = 0; r < y.extent(0); ++r) {
      if (positions[r] < 0) continue;
      const int64_t context = positions[r] + 1;
      lengths[sequences[r]] = std::max(lengths[sequences[r]], context);
      seen += context;
      splits += (context + kSplitTokens - 1) / kSplitTokens;
    }
    for (const auto& [sequence, length] : lengths) {
      cost_.kv_bytes += 4 * length * shape.num_kv_heads * shape.head_dim;
    }
    cost_.activation_bytes +=
        6 * y.extent(0) * width + 2 * splits * (4 * width + 8 * shape.num_heads);
    cost_.flops += 4 * seen * width;
    const int64_t max_positions = map.page_tables.extent(1) * kPageTokens;
    cost_.launches += 2 * cuda_attention_parts(y.extent(0), map.context, max_positions, shape);
  }

  void rope_and_attend(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                       TensorView v_pages, TensorView y, const RowMap& map,
                       const AttentionShape& shape, Stream& stream) override {
    Backend::rope_and_attend(qkv, cos, sin, k_pages, v_pages, y, map, shape, stream);
    const int64_t rows = y.extent(0);
    if (!cuda_attends_in_one(rows, shape)) return;
    const int32_t* positions = map.positions.data<int32_t>();
    const int64_t real =
        std::count_if(positions, positions + rows, [](int32_t position) { return position >= 0; });
    cost_.activation_bytes -= attending_in_one_saves_bytes(real, shape, cos.raw() != nullptr);
    cost_.launches -= 2;  // few rows never are several parts
  }

  void copy_tokens(const TokenCopy*, int64_t n, Stream&) override { cost_ += copy_tokens_cost(n); }
  void edit_logits(const LogitEdit*, int64_t, int64_t, Stream&) override {}
  void sample_drafts(TensorView logits, const DraftRow* rows, int64_t n, bool all_greedy, int32_t*,
                     RowDistribution*, float*, Stream&) override {
    const auto kept = std::count_if(rows, rows + n, [](const DraftRow& row) {
      return row.processors.mode == VerifyMode::rejection;
    });
    cost_ += sample_drafts_cost(n, logits.extent(1), kept, all_greedy);
  }
  void verify_summary(TensorView logits, int32_t, const VerifyRow*, int64_t num_slots,
                      SummaryMessage to, Stream&) override {
    cost_ += verify_summary_cost(to.num_rows, num_slots, logits.extent(1));
  }
  void combine_and_accept(SummaryMessages, const VerifyRow*, int64_t, RowDistribution*, uint64_t*,
                          const SequenceToVerify*, int64_t, Verdict*, Stream&) override {
    cost_ += combine_and_accept_cost();
  }
  void resolve_rows(const RowToResolve*, int64_t, int64_t, Stream&) override {}
  void accept_step(const SequenceToVerify*, int64_t, Verdict*, Stream&) override {}
  void race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size, const Verdict*,
                 RaceResult*, Stream&) override {
    cost_ += race_step_cost(num_there(sequences, n), shard_size);
  }
  void commit_step(const SequenceToVerify*, int64_t, const RaceResult*, int, Verdict*,
                   Stream&) override {
    cost_ += commit_step_cost();
  }
  void race_and_commit(const SequenceToVerify* sequences, int64_t n, int64_t shard_size, Verdict*,
                       RaceResult*, Stream&) override {
    cost_ += race_and_commit_cost(num_there(sequences, n), shard_size);
  }

 private:
  static int64_t num_there(const SequenceToVerify* sequences, int64_t n) {
    return std::count_if(sequences, sequences + n,
                         [](const SequenceToVerify& s) { return s.rows.num_drafted >= 0; });
  }

  Numerics numerics_;
  OperationCost cost_;
  int64_t allocated_bytes_ = 0;  // beside packed weights and what is reserved
  int64_t activation_scratch_bytes_ = 0, attention_scratch_bytes_ = 0;
  int64_t verify_scratch_bytes_ = 0, verify_arrivals_bytes_ = 0;
  int64_t packed_bytes_ = 0;
  std::set<uint64_t> replayed_;
};

// Counts, and lets `inner` exchange.
class MeteringCommunicator final : public Communicator {
 public:
  explicit MeteringCommunicator(Communicator& inner, Numerics numerics = Numerics::exact)
      : inner_(inner), numerics_(numerics) {}

  const ExchangeCost& cost() const { return cost_; }
  void forget_costs() { cost_ = {}; }
  int64_t reserved_bytes() const { return reserved_bytes_; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool is_near() const override { return false; }
  void reserve_sum(int64_t max_elements) override {
    const int64_t bytes = sum_scratch_bytes(size(), max_elements, numerics_);
    reserved_bytes_ = std::max(reserved_bytes_, bytes);
    inner_.reserve_sum(max_elements);
  }
  void all_reduce_sum(TensorView x, Stream& stream) override {
    cost_ += all_reduce_sum_cost(size(), x.size(), numerics_);
    inner_.all_reduce_sum(x, stream);
  }
  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    cost_ += all_gather_cost(size(), static_cast<int64_t>(mine.bytes()));
    inner_.all_gather(mine, all, stream);
  }
  void broadcast(TensorView x, int root, Stream& stream) override {
    inner_.broadcast(x, root, stream);
  }

 private:
  Communicator& inner_;
  Numerics numerics_;
  ExchangeCost cost_;
  int64_t reserved_bytes_ = 0;
};

}  // namespace outrider
