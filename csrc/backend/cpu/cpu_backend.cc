#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "backend/quantize.h"
#include "backend/shape_checks.h"
#include "core/error.h"
#include "kernels/cpu/distribution.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/processors.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/verify.h"

namespace outrider {
namespace {

// Checks a ragged pass, and that the pages are those of `shape`.
RowPointers row_pointers(const RowMap& map, int64_t rows, TensorView k_pages, TensorView v_pages,
                         const AttentionShape& shape) {
  check_row_map(map, rows, k_pages, v_pages, shape);
  const RowPointers pointers = {map.positions.data<int32_t>(), map.sequences.data<int32_t>(),
                                map.page_tables.data<int32_t>(), map.page_tables.extent(1)};
  for (int64_t r = 0; r < rows; ++r) {
    CHECK(0 <= pointers.sequences[r] && pointers.sequences[r] < map.page_tables.extent(0));
    CHECK(0 <= pointers.positions[r] && pointers.positions[r] < pointers.max_pages * kPageTokens);
  }
  return pointers;
}

}  // namespace

std::string CpuBackend::description() const { return "cpu/" + std::string(isa_name(isa_)); }

Buffer CpuBackend::allocate(size_t bytes) { return allocate_host(bytes); }

void CpuBackend::copy_from_host(TensorView to, const void* from, Stream&) {
  CHECK(to.contiguous());
  if (to.bytes() > 0) std::memcpy(to.raw(), from, to.bytes());
}

void CpuBackend::copy_to_host(void* to, TensorView from, Stream&) {
  CHECK(from.contiguous());
  if (from.bytes() > 0) std::memcpy(to, from.raw(), from.bytes());
}

void CpuBackend::copy(TensorView to, TensorView from, Stream&) {
  CHECK(to.contiguous() && from.contiguous() && to.bytes() == from.bytes());
  if (to.bytes() > 0) std::memcpy(to.raw(), from.raw(), to.bytes());
}

PackedWeight CpuBackend::pack(std::span<const TensorView> parts, WeightFormat format) {
  CHECK(!parts.empty());
  PackedWeight packed;
  packed.format = format;
  packed.k = parts[0].extent(1);
  for (const TensorView& part : parts) {
    CHECK(part.dtype() == DType::bf16 && part.rank() == 2 && part.extent(1) == packed.k);
    CHECK(part.stride(1) == 1);
    packed.n += part.extent(0);
  }
  packed.data = place_weight(cpu::packed_bytes(packed.n, packed.k, format));
  int64_t first_row = 0;
  for (const TensorView& part : parts) {
    const int64_t rows = part.extent(0);
    if (format == WeightFormat::int8) {
      const Int8Rows quantized = quantize_rows(part);
      cpu::pack_int8(quantized.values.data(), quantized.scales.data(), rows, first_row, packed.n,
                     packed.k, packed.data.data());
    } else {
      cpu::pack(part.data<bf16>(), part.stride(0), rows, first_row, packed.k, packed.data.data());
    }
    first_row += rows;
  }
  return packed;
}

// Stacked: the activation reads both from the product.
PackedWeight CpuBackend::pack_gate_up(std::span<const TensorView> parts, WeightFormat format) {
  PackedWeight packed = pack(parts, format);
  CHECK(packed.n % 2 == 0);
  packed.gate_up = true;
  return packed;
}

std::vector<std::span<std::byte>> CpuBackend::packed_memory() {
  std::vector<std::span<std::byte>> memory;
  for (; weights_given_ < weights_.size(); ++weights_given_) {
    const Chunk& chunk = weights_[weights_given_];
    memory.emplace_back(static_cast<std::byte*>(chunk.memory.data()),
                        (chunk.used + kHugePage - 1) / kHugePage * kHugePage);
  }
  return memory;
}

Buffer CpuBackend::place_weight(size_t bytes) {
  constexpr size_t kChunkBytes = size_t{64} << 20;  // touched only as far as it is used
  if (weights_.size() == weights_given_ ||
      weights_.back().memory.bytes() - weights_.back().used < bytes) {
    weights_.push_back({allocate_host(std::max(bytes, kChunkBytes)), 0});
  }
  Chunk& chunk = weights_.back();
  std::byte* data = static_cast<std::byte*>(chunk.memory.data()) + chunk.used;
  chunk.used += bytes;
  return Buffer(data, bytes, [](void*, size_t) {});
}

void CpuBackend::embed(const PackedWeight& table, TensorView tokens, int64_t first_token,
                       TensorView y, Stream&) {
  check_embed(table, tokens, y);
  cpu::embed(table.data.data(), tokens.data<int32_t>(), first_token, y.data<float>(),
             tokens.extent(0), table.n, table.k);
}

void CpuBackend::linear(const PackedWeight& weight, TensorView x, TensorView bias, TensorView y,
                        Stream&) {
  check_linear(weight, x, bias, y);
  cpu::linear(x.data<bf16>(), weight.data.data(), bias.data<float>(), y.data<float>(), x.extent(0),
              weight.n, weight.k, weight.format, isa_);
}

void CpuBackend::linear_activated(const PackedWeight& weight, TensorView x, TensorView bias,
                                  Activation activation, TensorView y, Stream&) {
  check_linear_activated(weight, x, bias, activation, y);
  const int64_t rows = x.extent(0), width = y.extent(1);
  CHECK(rows * weight.n * sizeof(float) <= activation_scratch_.bytes());
  auto* const product = static_cast<float*>(activation_scratch_.data());  // [rows, n]
  cpu::linear(x.data<bf16>(), weight.data.data(), bias.data<float>(), product, rows, weight.n,
              weight.k, weight.format, isa_);
  if (activation == Activation::swiglu) {
    cpu::silu_mul(product, y.data<bf16>(), rows, width, isa_);
  } else {
    cpu::gelu_tanh(product, y.data<bf16>(), rows * width, isa_);
  }
}

void CpuBackend::rms_norm(TensorView x, TensorView addend, TensorView weight, float epsilon,
                          TensorView y, Stream&) {
  const int64_t rows = x.extent(0), hidden = weight.extent(0);
  check_norm(x, addend, weight, y);
  cpu::rms_norm(x.data<float>(), addend.data<float>(), weight.data<bf16>(), y.data<bf16>(), rows,
                hidden, epsilon, isa_);
}

void CpuBackend::layer_norm(TensorView x, TensorView addend, TensorView weight, TensorView bias,
                            float epsilon, TensorView y, Stream&) {
  const int64_t rows = x.extent(0), hidden = weight.extent(0);
  check_norm(x, addend, weight, y);
  CHECK(has_shape(bias, DType::bf16, {hidden}));
  cpu::layer_norm(x.data<float>(), addend.data<float>(), weight.data<bf16>(), bias.data<bf16>(),
                  y.data<bf16>(), rows, hidden, epsilon, isa_);
}

void CpuBackend::gather_rows(TensorView x, TensorView indices, TensorView y, Stream&) {
  check_gather_rows(x, indices, y);
  const int32_t* index = indices.data<int32_t>();
  for (int64_t r = 0; r < indices.extent(0); ++r) {
    CHECK(0 <= index[r] && index[r] < x.extent(0));
    std::memcpy(y.data<bf16>() + r * y.stride(0), x.data<bf16>() + index[r] * x.stride(0),
                x.extent(1) * sizeof(bf16));
  }
}

void CpuBackend::expand_logits(TensorView x, TensorView tokens, TensorView y, Stream&) {
  check_expand_logits(x, tokens, y);
  cpu::expand_logits(x.data<float>(), tokens.data<int32_t>(), y.data<float>(), x.extent(0),
                     tokens.extent(0), x.extent(1), y.extent(1));
}

void CpuBackend::table_logits(TensorView tokens, const LogitTable& table, TensorView y, Stream&) {
  const int64_t rows = tokens.extent(0);
  CHECK(has_shape(tokens, DType::i32, {rows}) && has_shape(y, DType::f32, {rows, -1}));
  cpu::table_logits(tokens.data<int32_t>(), table, y.data<float>(), rows, y.extent(1));
}

void CpuBackend::reserve_activation(int64_t max_rows, int64_t n) {
  const size_t bytes = max_rows * n * sizeof(float);
  if (activation_scratch_.bytes() < bytes) activation_scratch_ = allocate_host(bytes);
}

void CpuBackend::reserve_attention(int64_t, int64_t max_positions, const AttentionShape& shape) {
  const int64_t pages = (max_positions + kPageTokens - 1) / kPageTokens;
  const size_t bytes = cpu::attention_scratch_size(pages, shape.head_dim) * sizeof(float);
  if (attention_scratch_.bytes() < bytes) attention_scratch_ = allocate_host(bytes);
}

void CpuBackend::rope_and_cache(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                                TensorView v_pages, const RowMap& map, const AttentionShape& shape,
                                Stream&) {
  const int64_t rows = qkv.extent(0);
  CHECK(has_shape(qkv, DType::f32, {rows, shape.qkv_width()}));
  check_rope_tables(cos, sin, shape);
  const RowPointers pointers = row_pointers(map, rows, k_pages, v_pages, shape);
  if (cos.raw() != nullptr) {
    for (int64_t r = 0; r < rows; ++r) CHECK(pointers.positions[r] < cos.extent(0));
  }
  cpu::rope_and_cache(qkv.data<float>(), cos.data<float>(), sin.data<float>(), k_pages.data<bf16>(),
                      v_pages.data<bf16>(), pointers, rows, shape, isa_);
}

void CpuBackend::attention(TensorView qkv, TensorView k_pages, TensorView v_pages, TensorView y,
                           const RowMap& map, const AttentionShape& shape, Stream&) {
  const int64_t rows = qkv.extent(0);
  CHECK(has_shape(qkv, DType::f32, {rows, shape.qkv_width()}));
  CHECK(has_shape(y, DType::bf16, {rows, shape.num_heads * shape.head_dim}));
  const RowPointers pointers = row_pointers(map, rows, k_pages, v_pages, shape);
  const size_t scratch_bytes =
      cpu::attention_scratch_size(pointers.max_pages, shape.head_dim) * sizeof(float);
  CHECK(scratch_bytes <= attention_scratch_.bytes());
  cpu::attention(qkv.data<float>(), k_pages.data<bf16>(), v_pages.data<bf16>(), y.data<bf16>(),
                 static_cast<float*>(attention_scratch_.data()), pointers, rows, shape, isa_);
}

void CpuBackend::copy_tokens(const TokenCopy* copies, int64_t n, Stream&) {
  cpu::copy_tokens(copies, n);
}

void CpuBackend::edit_logits(const LogitEdit* edits, int64_t n, int64_t largest_size, Stream&) {
  for (int64_t r = 0; r < n; ++r) CHECK(edits[r].to == nullptr || edits[r].size <= largest_size);
  cpu::edit_logits(edits, n, isa_);
}

void CpuBackend::sample_drafts(TensorView logits, const DraftRow* rows, int64_t n, bool,
                               int32_t* drafted, RowDistribution* q, float* q_logits, Stream&) {
  CHECK(has_shape(logits, DType::f32, {n, -1}));
  cpu::sample_drafts(logits.data<float>(), logits.extent(1), rows, n, drafted, q, q_logits, isa_);
}

void CpuBackend::verify_summary(TensorView logits, int32_t first_token, const VerifyRow* rows,
                                int64_t, SummaryMessage to, Stream&) {
  CHECK(to.num_rows == 0 || has_shape(logits, DType::f32, {-1, -1}));
  for (int64_t r = 0; r < to.num_rows; ++r) {
    CHECK(0 <= rows[r].logits_row && rows[r].logits_row < logits.extent(0));
  }
  if (to.num_rows == 0) return;
  cpu::verify_summary(logits.data<float>(), logits.extent(1), first_token, rows, to.num_rows,
                      to.summaries(), to.candidates(), isa_);
}

void CpuBackend::combine_and_accept(SummaryMessages all, const VerifyRow* rows, int64_t num_rows,
                                    RowDistribution* p, uint64_t* disagreeing,
                                    const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                                    Stream&) {
  CHECK(num_rows <= all.num_rows && all.ranks <= kMaxRanks);
  *disagreeing = cpu::combine_rows(all, rows, num_rows, p);
  cpu::accept_step(sequences, n, verdicts);
}

void CpuBackend::resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size,
                              Stream&) {
  cpu::resolve_rows(rows, num_rows, vocab_size, isa_);
}

void CpuBackend::accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                             Stream&) {
  cpu::accept_step(sequences, n, verdicts);
}

void CpuBackend::race_step(const SequenceToVerify* sequences, int64_t n, int64_t,
                           const Verdict* verdicts, RaceResult* results, Stream&) {
  cpu::race_step(sequences, n, verdicts, results, isa_);
}

void CpuBackend::commit_step(const SequenceToVerify* sequences, int64_t n,
                             const RaceResult* results, int ranks, Verdict* verdicts, Stream&) {
  cpu::commit_step(sequences, n, results, ranks, verdicts);
}

void CpuBackend::race_and_commit(const SequenceToVerify* sequences, int64_t n, int64_t,
                                 Verdict* verdicts, RaceResult* results, Stream&) {
  cpu::race_step(sequences, n, verdicts, results, isa_);
  cpu::commit_step(sequences, n, results, 1, verdicts);
}

std::unique_ptr<Backend> make_cpu_backend() {
  return std::make_unique<CpuBackend>(cpu::select_isa());
}

}  // namespace outrider
