#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace outrider {

namespace {

// Llama 3.1's scaling to a context `factor` times longer than the one of pre-training: dimensions
// that turned less than low_freq_factor times over the original context are slowed by factor, those
// that turned more than high_freq_factor times are kept, and between the two the share kept grows
// linearly with the number of turns.
double scale(double frequency, const Llama3RopeScaling& scaling) {
  const double turns = frequency * static_cast<double>(scaling.original_max_position_embeddings) /
                       (2.0 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double kept =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies(config.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    frequencies[i] = std::pow(config.rope_theta, exponent);
    if (config.rope_scaling) frequencies[i] = scale(frequencies[i], *config.rope_scaling);
  }
  return frequencies;
}

RopeTables make_rope_tables(const ModelConfig& config, int64_t max_positions) {
  const std::vector<double> frequencies = rope_frequencies(config);
  RopeTables tables;
  tables.cos.reserve(max_positions * frequencies.size());
  tables.sin.reserve(max_positions * frequencies.size());
  for (int64_t position = 0; position < max_positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      tables.cos.push_back(static_cast<float>(std::cos(angle)));
      tables.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return tables;
}

}  // namespace outrider
