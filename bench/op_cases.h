// The sizes at which each operation is tested for parity and timed: one list for both.
#pragma once

#include <cstdint>

#include "kernels/attention_types.h"

namespace outrider {

struct LinearCase {
  int64_t rows, n, k;
};

// Decode, verification, ragged prefill, several blocks along k, sizes that divide nothing.
inline constexpr LinearCase kLinearCases[] = {
    {1, 1, 1},      {1, 576, 576},   {5, 1536, 576},  {8, 24576, 576}, {8, 576, 1536},
    {9, 960, 576},  {3, 35, 40001},  {12, 48, 3001},  {16, 3072, 576}, {17, 193, 71},
    {64, 960, 576}, {67, 100, 1037}, {130, 576, 1536}};

struct RowCase {
  int64_t rows, width;
};

// Norms over hidden, activations over the intermediate size; the last two are wider than what a
// GPU's norm has of a row in registers.
inline constexpr RowCase kRowCases[] = {{1, 1},    {2, 15},   {3, 17},   {1, 576},  {8, 576},
                                        {8, 1536}, {64, 576}, {5, 1001}, {2, 8192}, {1, 4097}};

// `rows` new rows in each of `sequences` sequences that hold `context` tokens already.
struct AttentionCase {
  AttentionShape shape;
  int64_t sequences, context, rows;
};

// {num_heads, num_kv_heads, head_dim, group_size, head_offset}: decode, verification, prefill;
// heads alone, grouped, and cut within a group; a context of more splits than a GPU's merge has
// lanes.
inline constexpr AttentionCase kAttentionCases[] = {
    {{9, 3, 64, 3, 0}, 1, 1000, 1}, {{9, 3, 64, 3, 0}, 3, 200, 5}, {{6, 2, 64, 3, 0}, 1, 0, 96},
    {{4, 3, 64, 3, 2}, 2, 31, 3},   {{8, 8, 128, 1, 0}, 1, 48, 4}, {{3, 1, 2, 4, 1}, 2, 15, 18},
    {{5, 2, 38, 4, 1}, 3, 16, 1},   {{2, 1, 80, 2, 0}, 1, 127, 2}, {{4, 1, 96, 8, 3}, 2, 5, 7},
    {{1, 1, 16, 1, 0}, 1, 2100, 1}};

}  // namespace outrider
