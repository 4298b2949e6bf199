// Weights of a model that nobody has trained: for benchmarks, which need a shape and no checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "model/shard.h"
#include "model/weights.h"

namespace outrider {

// Uniform in (-1/64, 1/64) by `seed`; norms are 1, biases 0. A few million numbers come again and
// again, from other places of their sequence: it takes no longer than copying them. The same on
// every backend.
Weights random_weights(const ModelConfig& config, const Shard& shard, Backend& backend,
                       uint64_t seed);

// One such matrix, [n, k].
class RandomMatrices {
 public:
  explicit RandomMatrices(uint64_t seed);
  PackedWeight make(int64_t n, int64_t k, Backend& backend) {
    return backend.pack(parts(n, k), WeightFormat::bf16);
  }
  // An FFN's first, for linear_activated: of a gate and an up where there is one.
  PackedWeight make_ffn_in(Activation activation, int64_t width, int64_t k, Backend& backend);

 private:
  std::vector<TensorView> parts(int64_t n, int64_t k);

  std::vector<bf16> values_;
  uint64_t state_;
};

}  // namespace outrider
