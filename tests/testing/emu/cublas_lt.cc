// cuBLASLt in plain loops, in an order of addition that is none of ours.
#include <cublasLt.h>

#include <cstring>
#include <string>
#include <utility>

#include "core/bf16.h"
#include "testing/emu/device_memory.h"
#include "testing/emu/environment.h"
#include "testing/emu/stream.h"

namespace {

using outrider::bf16;

constexpr uint64_t kMostColumns = 300;  // of b, that the algorithms serve

// Every other element, from the last to the first, in as many rounds as the algorithm says.
float dot(const bf16* a, const bf16* b, int64_t k, uint64_t rounds) {
  float sum = 0.0f;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (int64_t i = k - 1 - static_cast<int64_t>(round); i >= 0;
         i -= static_cast<int64_t>(rounds)) {
      sum += to_float(a[i]) * to_float(b[i]);
    }
  }
  return sum;
}

// Bytes that the columns of a matrix lie in.
size_t span_bytes(const cublasLtMatrixLayoutOpaque_t& layout) {
  const size_t element = layout.type == CUDA_R_32F ? 4 : 2;
  return ((layout.columns - 1) * layout.pitch + layout.rows) * element;
}

}  // namespace

size_t cublasLtGetVersion() { return emu::environment_number("OUTRIDER_EMU_CUBLASLT", 130100); }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t,
                                      cudaDataType_t scale) {
  *operation = {CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
  return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  const auto copy_to = [&](auto& field) {
    if (bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return copy_to(operation->a);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return copy_to(operation->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return copy_to(operation->bias);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t columns, int64_t pitch) {
  *layout = {type, rows, columns, pitch};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (bytes != sizeof preference->workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference->workspace_bytes, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return bytes == sizeof(uint32_t) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// Like some of the library's, these are for rows of a that begin at multiples of 4 bytes alone.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (a->pitch % 2 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  *found = 1;
  results[0] = {};
  results[0].algo.data[0] = 2 + b->columns % 5;
  results[0].workspaceSize = preference->workspace_bytes;
  return CUBLAS_STATUS_SUCCESS;
}

// And for no more rows than some number.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (b->columns > kMostColumns) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algo;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const cublasLtMatrixLayoutOpaque_t of_a = *a_layout, of_b = *b_layout, of_d = *d_layout;
  const bool fits = operation->a == CUBLAS_OP_T && of_a.rows == of_b.rows &&
                    of_a.columns == of_d.rows && of_b.columns == of_d.columns &&
                    of_a.type == CUDA_R_16BF && of_b.type == CUDA_R_16BF && of_d.type == CUDA_R_32F;
  if (!fits || of_b.columns > kMostColumns || *static_cast<const float*>(alpha) != 1.0f ||
      *static_cast<const float*>(beta) != 0.0f) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool biased = operation->epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!emu::in_device_memory(a, span_bytes(of_a)) || !emu::in_device_memory(b, span_bytes(of_b)) ||
      !emu::in_device_memory(d, span_bytes(of_d)) ||
      !emu::in_device_memory(workspace, workspace_bytes) ||
      (biased && !emu::in_device_memory(operation->bias, of_d.rows * sizeof(float)))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float* const bias = biased ? operation->bias : nullptr;
  const auto product = [=, rounds = algo->data[0]] {
    for (uint64_t row = 0; row < of_d.columns; ++row) {
      for (uint64_t output = 0; output < of_d.rows; ++output) {
        const float sum = dot(static_cast<const bf16*>(a) + output * of_a.pitch,
                              static_cast<const bf16*>(b) + row * of_b.pitch,
                              static_cast<int64_t>(of_a.rows), rounds);
        static_cast<float*>(d)[row * of_d.pitch + output] =
            sum + (bias == nullptr ? 0.0f : bias[output]);
      }
    }
    return std::string();
  };
  emu::Operation multiply(product);
  multiply.is_kernel = true;
  return emu::enqueue(stream, std::move(multiply)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                  : CUBLAS_STATUS_INVALID_VALUE;
}
