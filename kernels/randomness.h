// Where random numbers come from: Philox4x32-10 as a pure function of (seed, choice, base, offset,
// purpose, token). No two draws that decide something share a counter, since base, the length of
// the sequence at the start of the step, grows strictly with each step.
//
//   key     = seed, low word first
//   counter = { token / 4, base, offset | purpose << 8, choice }
//
// offset is the position within the step, 0 … K. Word token % 4 of the output belongs to the token,
// so that four neighbours share one call; the accept test takes word 0 of token 0.
//
// An alternative to a drafted token runs in the noise of the token that it may turn out to be:
// where that is drawn by rejection, of the extra token behind a refusal at once. What the extra
// token is does not depend on it.
//
// `coupled` alone is not drawn afresh in each step: its base is the absolute position of the token
// that it chooses (the tokens before it, prompt included) and its offset 0, so that target and
// draft, with any K, see the same noise. It is never used in the accept test.
#pragma once

#include <array>
#include <cstdint>

#include "core/philox.h"
#include "kernels/verify_types.h"

namespace outrider {

enum class Purpose : uint32_t {
  draft = 0,          // the race for a drafted token
  accept = 1,         // the accept test
  extra = 2,          // the race for the extra token
  draft_refined = 3,  // second words of the races, where the first is below kRefineBelow
  extra_refined = 4,
  coupled = 5,  // the race of target and draft alike in coupled rows
  coupled_refined = 6,
};

constexpr Purpose refined(Purpose purpose) {
  return purpose == Purpose::draft   ? Purpose::draft_refined
         : purpose == Purpose::extra ? Purpose::extra_refined
                                     : Purpose::coupled_refined;
}

// A race's uniform is (k + 1/2) 2^-32. Below this k its grid would be coarse beside the value: a
// second word makes it (k 2^32 + k' + 1/2) 2^-64. It is never 0 and never 1.
constexpr uint32_t kRefineBelow = 1u << 8;

constexpr PhiloxKey philox_key(const RandomKey& key) {
  return {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)};
}

constexpr std::array<uint32_t, 4> philox_counter(const RandomKey& key, int offset, Purpose purpose,
                                                 uint32_t token) {
  return {token / 4, key.base, static_cast<uint32_t>(offset) | static_cast<uint32_t>(purpose) << 8,
          key.choice};
}

constexpr uint32_t random_word(const RandomKey& key, int offset, Purpose purpose, uint32_t token) {
  return philox4x32(philox_counter(key, offset, purpose, token), philox_key(key))[token % 4];
}

// The key of the coupled race for the token at `offset` of a step.
constexpr RandomKey coupled_key(const RandomKey& step, int offset) {
  return {step.seed, step.choice, step.base + static_cast<uint32_t>(offset)};
}

// Of a coupled race for a drafted token.
constexpr Purpose coupled_purpose(const DraftRow& row) {
  return row.foretells_extra != 0 ? Purpose::extra : Purpose::coupled;
}

// A race's uniform from its token's first word k; `second` is called where it is refined.
template <typename Second>
constexpr double race_uniform(uint32_t k, const Second& second) {
  if (k >= kRefineBelow) return (static_cast<double>(k) + 0.5) * 0x1p-32;
  return (static_cast<double>(uint64_t{k} << 32 | uint64_t{second()}) + 0.5) * 0x1p-64;
}

// For the accept test: one of 2^32 equally spaced values in [0, 1).
constexpr double accept_uniform(const RandomKey& key, int offset) {
  return random_word(key, offset, Purpose::accept, 0) * 0x1p-32;
}

}  // namespace outrider
