#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "backend/operation_cost.h"
#include "backend/shape_checks.h"
#include "core/error.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/distribution.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/processors.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/verify.h"

namespace outrider {

using cuda::check_cuda;

namespace {

constexpr size_t kCounterBytes = cuda::kFewCounters * sizeof(unsigned);

RowPointers row_pointers(const RowMap& map) {
  return {map.positions.data<int32_t>(), map.sequences.data<int32_t>(),
          map.page_tables.data<int32_t>(), map.page_tables.extent(1)};
}

int64_t table_positions(const RowMap& map) { return map.page_tables.extent(1) * kPageTokens; }

// Of attention's scratch, what `rows` rows may take of it: behind the counters.
std::span<std::byte> attention_workspace(const Buffer& scratch, int64_t rows, const RowMap& map,
                                         const AttentionShape& shape) {
  const auto bytes =
      static_cast<size_t>(cuda_attention_scratch_bytes(rows, table_positions(map), shape));
  CHECK(bytes <= scratch.bytes());
  return std::span(static_cast<std::byte*>(scratch.data()), bytes).subspan(kCounterBytes);
}

// What an operation needs of what was reserved.
void* reserved(const Buffer& scratch, size_t bytes) {
  CHECK(bytes <= scratch.bytes());
  return scratch.data();
}

}  // namespace

CudaBackend::CudaBackend(int device, Numerics numerics) : device_(device) {
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  check_cuda(cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  loading_ = make_stream();
  if (numerics == Numerics::fast) fast_linear_.emplace(allocate(kFastLinearWorkspaceBytes));
  for (cudaEvent_t& mark : marks_) check_cuda(cudaEventCreate(&mark), "cudaEventCreate");
  for (Piece& piece : pieces_) {
    piece.pinned = allocate_pinned(kPieceBytes);
    piece.device = allocate(kPieceBytes);
    check_cuda(cudaEventCreateWithFlags(&piece.packed, cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
  }
}

CudaBackend::~CudaBackend() {
  cudaDeviceSynchronize();
  graphs_.clear();
  for (Piece& piece : pieces_) {
    if (piece.packed != nullptr) cudaEventDestroy(piece.packed);
  }
  for (cudaEvent_t mark : marks_) {
    if (mark != nullptr) cudaEventDestroy(mark);
  }
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

std::string CudaBackend::description() const {
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_),
             "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_),
             "cudaDeviceGetAttribute");
  // Another cuBLASLt may choose other algorithms.
  return "cuda/sm_" + std::to_string(major) + std::to_string(minor) +
         (fast_linear_ ? "/fast, cuBLASLt " + std::to_string(cublasLtGetVersion()) : "");
}

Stream CudaBackend::make_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  streams_.push_back(stream);
  return {stream};
}

Buffer CudaBackend::allocate(size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, bytes);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told below
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error("device " + std::to_string(device_) + " has no room for " + std::to_string(bytes) +
                " bytes more: " + std::to_string(free) + " of its " + std::to_string(total) +
                " are free");
  }
  check_cuda(result, "cudaMalloc");
  Buffer buffer(data, bytes, [](void* memory, size_t) { cudaFree(memory); });
  check_cuda(cudaMemsetAsync(data, 0, bytes, handle(loading_)), "cudaMemsetAsync");
  check_cuda(cudaStreamSynchronize(handle(loading_)), "cudaStreamSynchronize");
  return buffer;
}

Buffer CudaBackend::allocate_pinned(size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  const cudaError_t result = cudaMallocHost(&data, bytes);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error("the host has no room for " + std::to_string(bytes) +
                " bytes of pinned memory; expected as much that is free, and may be locked (ulimit "
                "-l, a container's limits)");
  }
  check_cuda(result, "cudaMallocHost");
  std::memset(data, 0, bytes);
  return Buffer(data, bytes, [](void* memory, size_t) { cudaFreeHost(memory); });
}

void CudaBackend::copy_from_host(TensorView to, const void* from, Stream& stream) {
  CHECK(to.contiguous());
  if (to.bytes() == 0) return;
  check_cuda(cudaMemcpyAsync(to.raw(), from, to.bytes(), cudaMemcpyHostToDevice, handle(stream)),
             "cudaMemcpyAsync");
}

void CudaBackend::copy_to_host(void* to, TensorView from, Stream& stream) {
  CHECK(from.contiguous());
  if (from.bytes() == 0) return;
  check_cuda(cudaMemcpyAsync(to, from.raw(), from.bytes(), cudaMemcpyDeviceToHost, handle(stream)),
             "cudaMemcpyAsync");
}

void CudaBackend::copy(TensorView to, TensorView from, Stream& stream) {
  CHECK(to.contiguous() && from.contiguous() && to.bytes() == from.bytes());
  if (to.bytes() == 0) return;
  check_cuda(
      cudaMemcpyAsync(to.raw(), from.raw(), to.bytes(), cudaMemcpyDeviceToDevice, handle(stream)),
      "cudaMemcpyAsync");
}

void CudaBackend::synchronize(Stream& stream) {
  check_cuda(cudaStreamSynchronize(handle(stream)), "cudaStreamSynchronize");
}

bool CudaBackend::replay(uint64_t key, Stream& stream, bool collective,
                         const std::function<void()>& enqueue) {
  return graphs_.replay(key, handle(stream), collective, enqueue);
}

void CudaBackend::mark(int mark, Stream& stream) {
  CHECK(0 <= mark && mark < kMaxMarks);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(handle(stream), &status), "cudaStreamIsCapturing");
  // In a graph the event is recorded whenever the graph runs, and read from outside.
  const unsigned flags =
      status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
  check_cuda(cudaEventRecordWithFlags(marks_[mark], handle(stream), flags),
             "cudaEventRecordWithFlags");
}

double CudaBackend::seconds_between(int from, int to) const {
  CHECK(0 <= from && from < kMaxMarks && 0 <= to && to < kMaxMarks);
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, marks_[from], marks_[to]), "cudaEventElapsedTime");
  return 1e-3 * ms;
}

int64_t CudaBackend::padded_rows(int64_t rows) const { return cuda_padded_rows(rows); }

int64_t CudaBackend::padded_context(int64_t rows, int64_t context) const {
  return cuda_padded_context(rows, context);
}

void CudaBackend::embed(const PackedWeight& table, TensorView tokens, int64_t first_token,
                        TensorView y, Stream& stream) {
  check_embed(table, tokens, y);
  cuda::embed(table.data.data(), tokens.data<int32_t>(), first_token, y.data<float>(),
              tokens.extent(0), table.n, table.k, handle(stream));
}

bool CudaBackend::is_fast(const PackedWeight& weight, TensorView x, TensorView bias) {
  const int64_t rows = x.extent(0);
  return cuda_linear_is_fast(rows, numerics(), weight.format) &&
         fast_linear_->fits(rows, weight.n, weight.k, bias.raw() != nullptr);
}

void CudaBackend::linear_fast(const PackedWeight& weight, TensorView x, TensorView bias, float* y,
                              Stream& stream) {
  fast_linear_->linear(x.data<bf16>(), static_cast<const bf16*>(weight.rows.data()),
                       bias.data<float>(), y, x.extent(0), weight.n, weight.k, handle(stream));
}

void CudaBackend::linear(const PackedWeight& weight, TensorView x, TensorView bias, TensorView y,
                         Stream& stream) {
  check_linear(weight, x, bias, y);
  if (is_fast(weight, x, bias)) return linear_fast(weight, x, bias, y.data<float>(), stream);
  const int64_t rows = x.extent(0);
  cuda::linear(x.data<bf16>(), weight.data.data(), bias.data<float>(), y.data<float>(), rows,
               weight.n, weight.k, weight.format, cuda::linear_tile(rows, weight.n),
               handle(stream));
}

void CudaBackend::linear_activated(const PackedWeight& weight, TensorView x, TensorView bias,
                                   Activation activation, TensorView y, Stream& stream) {
  check_linear_activated(weight, x, bias, activation, y);
  const int64_t rows = x.extent(0), width = y.extent(1);
  if (!is_fast(weight, x, bias)) {
    cuda::linear_activated(x.data<bf16>(), weight.data.data(), bias.data<float>(), activation,
                           y.data<bf16>(), rows, weight.n, weight.k, weight.format,
                           cuda::linear_tile(rows, weight.n), handle(stream));
    return;
  }
  auto* const product =  // [rows, n]
      static_cast<float*>(reserved(activation_scratch_, rows * weight.n * sizeof(float)));
  linear_fast(weight, x, bias, product, stream);
  if (activation == Activation::swiglu) {
    cuda::silu_mul(product, y.data<bf16>(), rows, width, handle(stream));
  } else {
    cuda::gelu_tanh(product, y.data<bf16>(), rows * width, handle(stream));
  }
}

void CudaBackend::rms_norm(TensorView x, TensorView addend, TensorView weight, float epsilon,
                           TensorView y, Stream& stream) {
  const int64_t rows = x.extent(0), hidden = weight.extent(0);
  check_norm(x, addend, weight, y);
  cuda::rms_norm(x.data<float>(), addend.data<float>(), weight.data<bf16>(), y.data<bf16>(), rows,
                 hidden, epsilon, handle(stream));
}

void CudaBackend::layer_norm(TensorView x, TensorView addend, TensorView weight, TensorView bias,
                             float epsilon, TensorView y, Stream& stream) {
  const int64_t rows = x.extent(0), hidden = weight.extent(0);
  check_norm(x, addend, weight, y);
  CHECK(has_shape(bias, DType::bf16, {hidden}));
  cuda::layer_norm(x.data<float>(), addend.data<float>(), weight.data<bf16>(), bias.data<bf16>(),
                   y.data<bf16>(), rows, hidden, epsilon, handle(stream));
}

void CudaBackend::gather_rows(TensorView x, TensorView indices, TensorView y, Stream& stream) {
  check_gather_rows(x, indices, y);
  cuda::gather_rows(x.data<bf16>(), indices.data<int32_t>(), y.data<bf16>(), indices.extent(0),
                    x.extent(1), x.stride(0), y.stride(0), handle(stream));
}

void CudaBackend::expand_logits(TensorView x, TensorView tokens, TensorView y, Stream& stream) {
  check_expand_logits(x, tokens, y);
  cuda::expand_logits(x.data<float>(), tokens.data<int32_t>(), y.data<float>(), x.extent(0),
                      tokens.extent(0), x.extent(1), y.extent(1), handle(stream));
}

void CudaBackend::table_logits(TensorView tokens, const LogitTable& table, TensorView y,
                               Stream& stream) {
  const int64_t rows = tokens.extent(0);
  CHECK(has_shape(tokens, DType::i32, {rows}) && has_shape(y, DType::f32, {rows, -1}));
  cuda::table_logits(tokens.data<int32_t>(), table, y.data<float>(), rows, y.extent(1),
                     handle(stream));
}

void CudaBackend::reserve_activation(int64_t max_rows, int64_t n) {
  reserve(activation_scratch_, cuda_activation_scratch_bytes(max_rows, n, numerics()));
}

void CudaBackend::reserve_attention(int64_t max_rows, int64_t max_positions,
                                    const AttentionShape& shape) {
  const auto bytes =
      static_cast<size_t>(cuda_attention_scratch_bytes(max_rows, max_positions, shape));
  if (bytes / sizeof(float) > INT32_MAX) {  // kernels count in 32 bits
    throw Error("attention over " + std::to_string(max_positions) + " positions with " +
                std::to_string(shape.num_heads) + " heads of " + std::to_string(shape.head_dim) +
                " on a GPU takes " + std::to_string(bytes) +
                " bytes of scratch; expected fewer than 2^33: give --max-positions, or more ranks");
  }
  reserve(attention_scratch_, bytes);
}

void CudaBackend::reserve_verification(int64_t max_rows, int64_t vocab_size) {
  const size_t bytes = cuda::verify_workspace_bytes(max_rows, vocab_size);
  const size_t arrivals = cuda::verify_arrivals_bytes(max_rows);
  CHECK(bytes == static_cast<size_t>(cuda_verify_scratch_bytes(max_rows, vocab_size)));
  CHECK(arrivals == static_cast<size_t>(cuda_verify_arrivals_bytes(max_rows)));
  reserve(verify_scratch_, bytes);
  reserve(verify_arrivals_, arrivals);
}

cuda::VerifyScratch CudaBackend::verify_scratch(int64_t rows, int64_t vocab_size) const {
  return {reserved(verify_scratch_, cuda::verify_workspace_bytes(rows, vocab_size)),
          static_cast<unsigned*>(reserved(verify_arrivals_, cuda::verify_arrivals_bytes(rows)))};
}

void CudaBackend::reserve(Buffer& scratch, size_t bytes) {
  if (bytes <= scratch.bytes()) return;
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  graphs_.clear();
  scratch = {};
  scratch = allocate(bytes);
}

void CudaBackend::rope_and_cache(TensorView qkv, TensorView cos, TensorView sin, TensorView k_pages,
                                 TensorView v_pages, const RowMap& map, const AttentionShape& shape,
                                 Stream& stream) {
  const int64_t rows = qkv.extent(0);
  CHECK(has_shape(qkv, DType::f32, {rows, shape.qkv_width()}));
  check_rope_tables(cos, sin, shape);
  check_row_map(map, rows, k_pages, v_pages, shape);
  cuda::rope_and_cache(qkv.data<float>(), cos.data<float>(), sin.data<float>(),
                       k_pages.data<bf16>(), v_pages.data<bf16>(), row_pointers(map), rows, shape,
                       handle(stream));
}

void CudaBackend::attention(TensorView qkv, TensorView k_pages, TensorView v_pages, TensorView y,
                            const RowMap& map, const AttentionShape& shape, Stream& stream) {
  const int64_t rows = qkv.extent(0);
  CHECK(has_shape(qkv, DType::f32, {rows, shape.qkv_width()}));
  CHECK(has_shape(y, DType::bf16, {rows, shape.num_heads * shape.head_dim}));
  check_row_map(map, rows, k_pages, v_pages, shape);
  if (rows == 0) return;
  const auto workspace = attention_workspace(attention_scratch_, rows, map, shape);
  cuda::attention(qkv.data<float>(), k_pages.data<bf16>(), v_pages.data<bf16>(), y.data<bf16>(),
                  workspace.data(), workspace.size(), row_pointers(map), rows,
                  std::min(map.context, table_positions(map)), shape, handle(stream));
}

void CudaBackend::rope_and_attend(TensorView qkv, TensorView cos, TensorView sin,
                                  TensorView k_pages, TensorView v_pages, TensorView y,
                                  const RowMap& map, const AttentionShape& shape, Stream& stream) {
  const int64_t rows = qkv.extent(0);
  if (!cuda_attends_in_one(rows, shape)) {
    return Backend::rope_and_attend(qkv, cos, sin, k_pages, v_pages, y, map, shape, stream);
  }
  CHECK(has_shape(qkv, DType::f32, {rows, shape.qkv_width()}));
  CHECK(has_shape(y, DType::bf16, {rows, shape.num_heads * shape.head_dim}));
  check_rope_tables(cos, sin, shape);
  check_row_map(map, rows, k_pages, v_pages, shape);
  void* const workspace = attention_workspace(attention_scratch_, rows, map, shape).data();
  cuda::attention_of_few(qkv.data<float>(), cos.data<float>(), sin.data<float>(),
                         k_pages.data<bf16>(), v_pages.data<bf16>(), y.data<bf16>(), workspace,
                         static_cast<unsigned*>(attention_scratch_.data()), row_pointers(map), rows,
                         !map.behind_others, shape, num_multiprocessors_, handle(stream));
}

void CudaBackend::copy_tokens(const TokenCopy* copies, int64_t n, Stream& stream) {
  cuda::copy_tokens(copies, n, handle(stream));
}

void CudaBackend::edit_logits(const LogitEdit* edits, int64_t n, int64_t largest_size,
                              Stream& stream) {
  cuda::edit_logits(edits, n, largest_size, handle(stream));
}

void CudaBackend::sample_drafts(TensorView logits, const DraftRow* rows, int64_t n, bool all_greedy,
                                int32_t* drafted, RowDistribution* q, float* q_logits,
                                Stream& stream) {
  CHECK(has_shape(logits, DType::f32, {n, -1}));
  const int64_t vocab_size = logits.extent(1);
  cuda::sample_drafts(logits.data<float>(), vocab_size, rows, n, all_greedy, drafted, q, q_logits,
                      verify_scratch(n, vocab_size), handle(stream));
}

void CudaBackend::verify_summary(TensorView logits, int32_t first_token, const VerifyRow* rows,
                                 int64_t num_slots, SummaryMessage to, Stream& stream) {
  if (to.num_rows == 0) return;
  CHECK(has_shape(logits, DType::f32, {-1, -1}));
  const int64_t shard_size = logits.extent(1);
  cuda::verify_summary(logits.data<float>(), shard_size, first_token, rows, to.num_rows, num_slots,
                       to.summaries(), to.candidates(), verify_scratch(to.num_rows, shard_size),
                       handle(stream));
}

void CudaBackend::combine_and_accept(SummaryMessages all, const VerifyRow* rows, int64_t num_rows,
                                     RowDistribution* p, uint64_t* disagreeing,
                                     const SequenceToVerify* sequences, int64_t n,
                                     Verdict* verdicts, Stream& stream) {
  CHECK(num_rows <= all.num_rows && all.ranks <= kMaxRanks);
  cuda::combine_and_accept(all, rows, num_rows, p, disagreeing, sequences, n, verdicts,
                           handle(stream));
}

void CudaBackend::resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size,
                               Stream& stream) {
  cuda::resolve_rows(rows, num_rows, vocab_size, handle(stream));
}

void CudaBackend::accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                              Stream& stream) {
  cuda::accept_step(sequences, n, verdicts, handle(stream));
}

void CudaBackend::race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                            const Verdict* verdicts, RaceResult* results, Stream& stream) {
  cuda::race_step(sequences, n, shard_size, verdicts, results, verify_scratch(n, shard_size),
                  handle(stream));
}

void CudaBackend::race_and_commit(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                                  Verdict* verdicts, RaceResult* results, Stream& stream) {
  cuda::race_and_commit(sequences, n, shard_size, verdicts, results, verify_scratch(n, shard_size),
                        handle(stream));
}

void CudaBackend::commit_step(const SequenceToVerify* sequences, int64_t n,
                              const RaceResult* results, int ranks, Verdict* verdicts,
                              Stream& stream) {
  cuda::commit_step(sequences, n, results, ranks, verdicts, handle(stream));
}

std::unique_ptr<Backend> make_cuda_backend(int device, Numerics numerics) {
  return std::make_unique<CudaBackend>(device, numerics);
}

}  // namespace outrider
