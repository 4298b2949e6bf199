// Matrices are row-major here and column-major there, so what is computed is yᵀ = W xᵀ: [n, rows].
#include "backend/cuda/fast_linear.h"

#include <string>
#include <utility>

#include "backend/operation_cost.h"
#include "core/error.h"

namespace outrider {
namespace {

constexpr int64_t kChosenForRows = 256;  // of a pass that feeds a prompt: --prefill-chunk's default

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string(call) + " failed: " + cublasLtGetStatusName(status));
}

// What a product looks like to cuBLASLt; on the stack.
struct Product {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, y;

  Product(const float* bias, int64_t rows, int64_t n, int64_t k) {
    check_blas(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescInit");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    }
    check_blas(cublasLtMatrixLayoutInit(&weight, CUDA_R_16BF, k, n, k), "cublasLtMatrixLayoutInit");
    check_blas(cublasLtMatrixLayoutInit(&x, CUDA_R_16BF, k, rows, k), "cublasLtMatrixLayoutInit");
    check_blas(cublasLtMatrixLayoutInit(&y, CUDA_R_32F, n, rows, n), "cublasLtMatrixLayoutInit");
  }

 private:
  void set(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
    check_blas(cublasLtMatmulDescSetAttribute(&operation, attribute, value, bytes),
               "cublasLtMatmulDescSetAttribute");
  }
};

// Views begin at multiples of 16 bytes, and so do rows where they are as long.
uint32_t alignment(int64_t row_bytes) {
  return row_bytes % 16 == 0 ? 16 : row_bytes % 4 == 0 ? 4 : 2;
}

}  // namespace

FastLinear::FastLinear(Buffer workspace) : workspace_(std::move(workspace)) {
  const cublasStatus_t status = cublasLtCreate(&handle_);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string("--numerics fast: cublasLtCreate failed: ") +
              cublasLtGetStatusName(status) + "; expected cuBLASLt " +
              std::to_string(cublasLtGetVersion()) +
              " to start on this GPU, with memory for itself, or --numerics exact");
}

FastLinear::~FastLinear() { cublasLtDestroy(handle_); }

void FastLinear::choose(int64_t n, int64_t k) {
  for (const bool with_bias : {false, true}) {
    if (algorithms_.contains({n, k, with_bias})) continue;
    Product product(some_bias(with_bias), kChosenForRows, n, k);
    cublasLtMatmulPreferenceOpaque_t wanted;
    check_blas(cublasLtMatmulPreferenceInit(&wanted), "cublasLtMatmulPreferenceInit");
    const auto want = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_blas(cublasLtMatmulPreferenceSetAttribute(&wanted, attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    const uint32_t of_k = alignment(k * 2), of_n = alignment(n * 4);
    want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t{kFastLinearWorkspaceBytes});
    // No split of k: its workspace grows with the rows, and one algorithm is to serve many numbers.
    want(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_k);
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_k);
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_n);
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_n);
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, &product.operation, &product.weight, &product.x,
                                       &product.y, &product.y, &wanted, 1, &best, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
      continue;
    }
    check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
    check_blas(best.state, "cublasLtMatmulAlgoGetHeuristic");
    algorithms_.emplace(Shape{n, k, with_bias}, Algorithm{.chosen = best.algo});
  }
}

bool FastLinear::fits(int64_t rows, int64_t n, int64_t k, bool bias) {
  const auto algorithm = algorithms_.find({n, k, bias});
  if (algorithm == algorithms_.end()) return false;
  const auto [known, is_new] = algorithm->second.fits.try_emplace(rows);
  if (is_new) {
    Product product(some_bias(bias), rows, n, k);
    cublasLtMatmulHeuristicResult_t result;
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_, &product.operation, &product.weight, &product.x,
                                &product.y, &product.y, &algorithm->second.chosen, &result);
    known->second = status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
                    result.workspaceSize <= kFastLinearWorkspaceBytes;
  }
  return known->second;
}

// What cuBLASLt may ask of an address: as aligned as every bias, since cudaMalloc gave both.
const float* FastLinear::some_bias(bool wanted) const {
  return wanted ? static_cast<const float*>(workspace_.data()) : nullptr;
}

void FastLinear::linear(const bf16* x, const bf16* weight, const float* bias, float* y,
                        int64_t rows, int64_t n, int64_t k, cudaStream_t stream) const {
  Product product(bias, rows, n, k);
  const float one = 1.0f, zero = 0.0f;
  check_blas(cublasLtMatmul(handle_, &product.operation, &one, weight, &product.weight, x,
                            &product.x, &zero, y, &product.y, y, &product.y,
                            &algorithms_.at({n, k, bias != nullptr}).chosen, workspace_.data(),
                            kFastLinearWorkspaceBytes, stream),
             "cublasLtMatmul");
}

}  // namespace outrider
