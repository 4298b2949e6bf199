// Rotary position embedding (Su et al. 2021): the tables of angles that a model rotates by.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace outrider {

// Angle per position of each pair of dimensions (i, i + head_dim / 2): rope_theta^(-2i / head_dim),
// slowed as config.rope_scaling says. [head_dim / 2]
std::vector<double> rope_frequencies(const ModelConfig& config);

// Computed in double, rounded once.
struct RopeTables {
  std::vector<float> cos;  // [max_positions, head_dim / 2]
  std::vector<float> sin;  // [max_positions, head_dim / 2]
};
RopeTables make_rope_tables(const ModelConfig& config, int64_t max_positions);

}  // namespace outrider
