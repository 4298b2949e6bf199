// Backend: the coarse operations of a decoder, on views, on a stream. An operation's output row
// depends on that row's own inputs alone, bit for bit. Shapes are the caller's to get right
// (CHECKed); nothing here knows of ranks, but for which passes are collective.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/numerics.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/activation.h"
#include "kernels/attention_types.h"
#include "kernels/logit_table.h"
#include "kernels/processors.h"
#include "kernels/verify_types.h"
#include "kernels/weight_format.h"

namespace outrider {

// A weight matrix [n, k] (or embedding table) in the backend's own layout; ends before the backend.
struct PackedWeight {
  Buffer data;
  Buffer rows;  // as in the checkpoint, bf16 [n, k], where the backend wants that too
  int64_t n = 0;
  int64_t k = 0;
  WeightFormat format = WeightFormat::bf16;
  bool gate_up = false;  // for linear_activated with a gate, and nothing else
};

// Where each row of a ragged pass stands: rows of several sequences side by side.
struct RowMap {
  TensorView positions;    // i32 [rows]: position in its sequence, from 0
  TensorView sequences;    // i32 [rows]: which page table
  TensorView page_tables;  // i32 [sequences, max_pages]
  // Other rows of the same pass write, before these, to pages that these read.
  bool behind_others = false;
  int64_t context = INT64_MAX;  // that no row's position reaches: scratch memory is laid out by it
};

constexpr int kMaxMarks = 16;  // of times on a stream

class Backend {
 public:
  virtual ~Backend() = default;

  // What the numerics depend on, e.g. "cpu/avx512_bf16". Part of the fingerprint.
  virtual std::string description() const = 0;

  virtual Stream make_stream() = 0;  // lives as long as the backend
  // Zeroed memory of this backend. Throws Error where there is none left.
  virtual Buffer allocate(size_t bytes) = 0;
  // Zeroed memory of the host, for copies that are in flight when the call returns.
  virtual Buffer allocate_pinned(size_t bytes) = 0;
  // Contiguous views. Pinned memory of the host is read (or written) when the stream gets there,
  // any other before the call returns.
  virtual void copy_from_host(TensorView to, const void* from, Stream& stream) = 0;
  virtual void copy_to_host(void* to, TensorView from, Stream& stream) = 0;
  virtual void copy(TensorView to, TensorView from, Stream& stream) = 0;
  virtual void synchronize(Stream& stream) = 0;

  // Does what `enqueue` enqueues; from the second call with this key on, perhaps without calling
  // it. So a key stands for the same operations on the same views, and `enqueue` does nothing else.
  // collective: it exchanges with other ranks, of which each replays the same collective passes in
  // the same order. What is kept of them never depends on the room that this rank has: NCCL wants
  // all ranks to launch a graph, or none.
  // Returns whether it has recorded the pass, or tried to: that takes far longer than running it.
  virtual bool replay(uint64_t key, Stream& stream, bool collective,
                      const std::function<void()>& enqueue) = 0;
  // Forgets what it may have kept for that. A communicator that takes part ends after this, since
  // NCCL waits for the graphs that have its collectives.
  virtual void forget_replayed() = 0;
  // Notes the time at which the stream gets here, and forgets what the mark noted before. May be
  // part of what is replayed. mark: 0 … kMaxMarks - 1.
  virtual void mark(int mark, Stream& stream) = 0;
  // Seconds between two marks, both of which the stream has passed.
  virtual double seconds_between(int from, int to) const = 0;
  // Rows that a replayed pass of `rows` is padded to, by rows at position -1: less than twice as
  // many.
  virtual int64_t padded_rows(int64_t rows) const = 0;
  // The RowMap::context of a pass of `rows` rows whose longest sees `context` positions: no less,
  // and of few values, since a replayed pass has it for good.
  virtual int64_t padded_context(int64_t rows, int64_t context) const = 0;

  // Stacks the parts along n. Each part: bf16 [n_i, k] on the host, last dimension contiguous.
  // int8: as quantize_rows makes of them.
  virtual PackedWeight pack(std::span<const TensorView> parts, WeightFormat format) = 0;
  // The same of an FFN's gate and up: the first half of the n rows, and the other half.
  virtual PackedWeight pack_gate_up(std::span<const TensorView> parts, WeightFormat format) = 0;
  // The host's memory, in whole huge pages, that holds what was packed since the last call and
  // nothing else; none where weights are on a device.
  virtual std::vector<std::span<std::byte>> packed_memory() { return {}; }

  // y[r] = table[tokens[r] - first_token], zeros where that row is another rank's.
  // tokens: i32 [rows]; y: f32 [rows, k]; table: bf16
  virtual void embed(const PackedWeight& table, TensorView tokens, int64_t first_token,
                     TensorView y, Stream& stream) = 0;

  // y = x Wᵀ + bias. x: bf16 [rows, k]; bias: f32 [n] or an empty view; y: f32 [rows, n]
  virtual void linear(const PackedWeight& weight, TensorView x, TensorView bias, TensorView y,
                      Stream& stream) = 0;

  // y = the activation of x Wᵀ + bias. x, bias: as linear's; weight: of pack_gate_up for swiglu;
  // y: bf16 [rows, n / num_inputs]
  virtual void linear_activated(const PackedWeight& weight, TensorView x, TensorView bias,
                                Activation activation, TensorView y, Stream& stream) = 0;

  // x += addend; y = the norm of x. x: f32 [rows, hidden]; addend: the same, or an empty view:
  // nothing is added; weight: bf16 [hidden]; y: bf16 [rows, hidden]. x, addend and y do not
  // overlap: kernels load ahead of what they store
  virtual void rms_norm(TensorView x, TensorView addend, TensorView weight, float epsilon,
                        TensorView y, Stream& stream) = 0;

  // Likewise. bias: bf16 [hidden]
  virtual void layer_norm(TensorView x, TensorView addend, TensorView weight, TensorView bias,
                          float epsilon, TensorView y, Stream& stream) = 0;

  // Copies rows `indices` of x to y. x: bf16 [rows, width]; indices: i32 [m]; y: bf16 [m, width];
  // either may be columns of a wider matrix
  virtual void gather_rows(TensorView x, TensorView indices, TensorView y, Stream& stream) = 0;

  // y[r][tokens[i]] = x[r][i]; other tokens get a logit of probability 0. x: f32 [rows, m]; tokens:
  // i32 [n], ascending, n <= m: columns behind them count for nothing; y: f32 [rows, vocab_size]
  virtual void expand_logits(TensorView x, TensorView tokens, TensorView y, Stream& stream) = 0;

  // y[r] = the table's logits behind tokens[r]; other tokens get one of probability 0. tokens: i32
  // [rows]; y: f32 [rows, vocab_size]; the table is memory of this backend
  virtual void table_logits(TensorView tokens, const LogitTable& table, TensorView y,
                            Stream& stream) = 0;

  // Scratch memory is taken before anything is served: whoever will call these operations says how
  // large they get, and the largest counts. One that needs more than was reserved is a bug. Throws
  // Error where there is none left; where memory has to move, what was recorded is forgotten.
  // Of linear_activated, for max_rows rows and weights of n outputs:
  virtual void reserve_activation(int64_t max_rows, int64_t n) = 0;
  // Of attention, in passes of max_rows rows over page tables for max_positions:
  virtual void reserve_attention(int64_t max_rows, int64_t max_positions,
                                 const AttentionShape& shape) = 0;
  // Of sample_drafts, verify_summary and race_step, for max_rows rows (or sequences) of vocab_size
  // logits:
  virtual void reserve_verification(int64_t max_rows, int64_t vocab_size) = 0;

  // Rotates q and k in place by position and writes k and v to their pages, rounded to bf16.
  // qkv: f32 [rows, (num_heads + 2 num_kv_heads) * head_dim]; cos, sin: f32 [max_positions,
  // head_dim / 2], or empty views: nothing is rotated; k_pages, v_pages: bf16 [pages, num_kv_heads,
  // kPageTokens, head_dim], the last two in whatever order the backend likes
  virtual void rope_and_cache(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                              TensorView v_pages, const RowMap& map, const AttentionShape& shape,
                              Stream& stream) = 0;

  // Each row attends to positions 0 … its own. qkv as above, q alone is read; y: bf16 [rows,
  // num_heads * head_dim]
  virtual void attention(TensorView qkv, TensorView k_pages, TensorView v_pages, TensorView y,
                         const RowMap& map, const AttentionShape& shape, Stream& stream) = 0;

  // Both in turn; what stands in qkv then is unspecified. Pages that no row of these writes to may
  // be read before what the pass enqueued before this is over, but for rows that are behind others.
  virtual void rope_and_attend(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                               TensorView v_pages, TensorView y, const RowMap& map,
                               const AttentionShape& shape, Stream& stream) {
    rope_and_cache(qkv, cos, sin, k_pages, v_pages, map, shape, stream);
    attention(qkv, k_pages, v_pages, y, map, shape, stream);
  }

  // Drafting and verification: kernels/cpu/{processors,sample,distribution,verify}.h say what each
  // does. The structs and all that they point to are memory of this backend.
  virtual void copy_tokens(const TokenCopy* copies, int64_t n, Stream& stream) = 0;
  // largest_size: of the rows
  virtual void edit_logits(const LogitEdit* edits, int64_t n, int64_t largest_size,
                           Stream& stream) = 0;
  // logits: f32 [n, vocab_size], which change where a row masks a token; all_greedy: no row is
  // drawn otherwise; q_logits: f32 [any, vocab_size], apart from them
  virtual void sample_drafts(TensorView logits, const DraftRow* rows, int64_t n, bool all_greedy,
                             int32_t* drafted, RowDistribution* q, float* q_logits,
                             Stream& stream) = 0;
  // logits: f32 [any, shard_size]; rows: [to.num_rows]; num_slots: of `to`, for candidates; every
  // candidates_slot is below it. Leaves the digest alone.
  virtual void verify_summary(TensorView logits, int32_t first_token, const VerifyRow* rows,
                              int64_t num_slots, SummaryMessage to, Stream& stream) = 0;
  // combine_rows (rows that no sequence points to are left out), then accept_step.
  virtual void combine_and_accept(SummaryMessages all, const VerifyRow* rows, int64_t num_rows,
                                  RowDistribution* p, uint64_t* disagreeing,
                                  const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                                  Stream& stream) = 0;
  virtual void resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size,
                            Stream& stream) = 0;
  virtual void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                           Stream& stream) = 0;
  virtual void race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                         const Verdict* verdicts, RaceResult* results, Stream& stream) = 0;
  virtual void commit_step(const SequenceToVerify* sequences, int64_t n, const RaceResult* results,
                           int ranks, Verdict* verdicts, Stream& stream) = 0;
  // Both, of a rank alone.
  virtual void race_and_commit(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                               Verdict* verdicts, RaceResult* results, Stream& stream) = 0;
};

// Forgets what a backend has kept for replay(), whichever way its scope is left: declared before
// whatever records, and behind the communicator that takes part.
class ForgetReplayed {
 public:
  explicit ForgetReplayed(Backend& backend) : backend_(backend) {}
  ~ForgetReplayed() { backend_.forget_replayed(); }
  ForgetReplayed(const ForgetReplayed&) = delete;
  ForgetReplayed& operator=(const ForgetReplayed&) = delete;

 private:
  Backend& backend_;
};

// The CPU backend on the instruction set of kernels/cpu/isa.h.
std::unique_ptr<Backend> make_cpu_backend();

// The CUDA backend on a device of this host. Throws Error where there is no such device, or where
// this program was built without CUDA.
std::unique_ptr<Backend> make_cuda_backend(int device, Numerics numerics = Numerics::exact);

}  // namespace outrider
