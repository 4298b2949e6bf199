// Weights on their way to the device.
#include <algorithm>
#include <cstring>
#include <string>

#include "backend/cuda/cuda_backend.h"
#include "backend/quantize.h"
#include "core/error.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear.h"

namespace outrider {

using cuda::check_cuda;

namespace {

// Writes rows as they travel: one behind the other; of int8 all scales first.
void write_rows(TensorView rows, WeightFormat format, std::byte* to) {
  if (format == WeightFormat::int8) {
    const Int8Rows quantized = quantize_rows(rows);
    const size_t scale_bytes = quantized.scales.size() * sizeof(float);
    std::memcpy(to, quantized.scales.data(), scale_bytes);
    std::memcpy(to + scale_bytes, quantized.values.data(), quantized.values.size());
    return;
  }
  const int64_t bytes = row_bytes(rows.extent(1), format);
  for (int64_t r = 0; r < rows.extent(0); ++r) {
    std::memcpy(to + r * bytes, rows.data<bf16>() + r * rows.stride(0), bytes);
  }
}

}  // namespace

PackedWeight CudaBackend::pack(std::span<const TensorView> parts, WeightFormat format) {
  return pack(parts, format, false);
}

PackedWeight CudaBackend::pack_gate_up(std::span<const TensorView> parts, WeightFormat format) {
  return pack(parts, format, true);
}

// Rows go to pinned memory, to the device, and there into their packed places.
PackedWeight CudaBackend::pack(std::span<const TensorView> parts, WeightFormat format,
                               bool gate_up) {
  CHECK(!parts.empty());
  PackedWeight packed;
  packed.format = format;
  packed.gate_up = gate_up;
  packed.k = parts[0].extent(1);
  for (const TensorView& part : parts) {
    CHECK(part.dtype() == DType::bf16 && part.rank() == 2 && part.extent(1) == packed.k);
    CHECK(part.stride(1) == 1);
    packed.n += part.extent(0);
  }
  CHECK(!gate_up || packed.n % 2 == 0);
  if (packed.n > cuda::kMostOutputs) {
    throw Error("a weight of " + std::to_string(packed.n) + " rows on one GPU; expected at most " +
                std::to_string(cuda::kMostOutputs) + ": give more ranks");
  }
  packed.data = allocate(cuda::packed_bytes(packed.n, packed.k, format));
  const bool int8 = format == WeightFormat::int8;
  const bool keeps_rows = fast_linear_ && !int8;
  if (keeps_rows) {
    packed.rows = allocate(packed.n * packed.k * sizeof(bf16));
    fast_linear_->choose(packed.n, packed.k);
  }
  const int64_t bytes = row_bytes(packed.k, format);
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes) / bytes);
  CHECK(bytes <= static_cast<int64_t>(kPieceBytes));
  int64_t first_row = 0;
  int turn = 0;
  for (const TensorView& part : parts) {
    for (int64_t begin = 0; begin < part.extent(0); begin += most, ++turn) {
      Piece& piece = pieces_[turn % 2];
      const int64_t rows = std::min(most, part.extent(0) - begin);
      check_cuda(cudaEventSynchronize(piece.packed), "cudaEventSynchronize");
      write_rows(part.rows(begin, begin + rows), format,
                 static_cast<std::byte*>(piece.pinned.data()));
      copy_from_host(piece.device.view(DType::u8, {rows, bytes}), piece.pinned.data(), loading_);
      if (int8) {
        const auto* const scales = static_cast<const float*>(piece.device.data());  // [rows]
        cuda::pack_int8(reinterpret_cast<const int8_t*>(scales + rows), scales, rows, first_row,
                        packed.n, packed.k, gate_up, packed.data.data(), handle(loading_));
      } else {
        cuda::pack(static_cast<const bf16*>(piece.device.data()), rows, first_row, packed.n,
                   packed.k, gate_up, packed.data.data(), handle(loading_));
      }
      if (keeps_rows) {
        copy(packed.rows.view(DType::bf16, {rows, packed.k}, first_row * bytes),
             piece.device.view(DType::bf16, {rows, packed.k}), loading_);
      }
      check_cuda(cudaEventRecord(piece.packed, handle(loading_)), "cudaEventRecord");
      first_row += rows;
    }
  }
  synchronize(loading_);
  return packed;
}

}  // namespace outrider
