// What every backend checks of its caller's views.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backend/backend.h"
#include "core/error.h"
#include "core/tensor.h"

namespace outrider {

// A contiguous tensor of these extents; -1 is any.
inline bool has_shape(TensorView view, DType dtype, std::initializer_list<int64_t> extents) {
  if (view.dtype() != dtype || view.rank() != static_cast<int>(extents.size())) return false;
  int d = 0;
  for (int64_t extent : extents) {
    if (extent != -1 && view.extent(d) != extent) return false;
    ++d;
  }
  return view.contiguous();
}

// Checks what goes into a product.
inline void check_product(const PackedWeight& weight, TensorView x, TensorView bias) {
  CHECK(has_shape(x, DType::bf16, {x.extent(0), weight.k}));
  CHECK(bias.raw() == nullptr || has_shape(bias, DType::f32, {weight.n}));
}

inline void check_embed(const PackedWeight& table, TensorView tokens, TensorView y) {
  CHECK(!table.gate_up && table.format == WeightFormat::bf16);
  CHECK(has_shape(tokens, DType::i32, {tokens.extent(0)}));
  CHECK(has_shape(y, DType::f32, {tokens.extent(0), table.k}));
}

inline void check_linear(const PackedWeight& weight, TensorView x, TensorView bias, TensorView y) {
  check_product(weight, x, bias);
  CHECK(!weight.gate_up && has_shape(y, DType::f32, {x.extent(0), weight.n}));
}

inline void check_linear_activated(const PackedWeight& weight, TensorView x, TensorView bias,
                                   Activation activation, TensorView y) {
  check_product(weight, x, bias);
  CHECK(weight.gate_up == (activation == Activation::swiglu));
  CHECK(has_shape(y, DType::bf16, {x.extent(0), weight.n / num_inputs(activation)}));
}

// Whether it is a matrix of such rows, each whole, however far apart.
inline bool has_rows(TensorView view, DType dtype, int64_t rows, int64_t width) {
  return view.dtype() == dtype && view.rank() == 2 && (rows == -1 || view.extent(0) == rows) &&
         view.extent(1) == width && view.stride(1) == 1;
}

inline void check_gather_rows(TensorView x, TensorView indices, TensorView y) {
  CHECK(has_shape(indices, DType::i32, {-1}));
  CHECK(has_rows(x, DType::bf16, -1, x.extent(1)));
  CHECK(has_rows(y, DType::bf16, indices.extent(0), x.extent(1)));
}

inline void check_expand_logits(TensorView x, TensorView tokens, TensorView y) {
  CHECK(has_shape(x, DType::f32, {-1, -1}) && has_shape(tokens, DType::i32, {-1}));
  CHECK(tokens.extent(0) <= x.extent(1) && has_shape(y, DType::f32, {x.extent(0), -1}));
}

// Whether no byte is both views'. Of contiguous ones.
inline bool disjoint(TensorView a, TensorView b) {
  const auto begin = [](TensorView view) { return reinterpret_cast<uintptr_t>(view.raw()); };
  return a.bytes() == 0 || b.bytes() == 0 || begin(a) + a.bytes() <= begin(b) ||
         begin(b) + b.bytes() <= begin(a);
}

// Checks the views that every norm has.
inline void check_norm(TensorView x, TensorView addend, TensorView weight, TensorView y) {
  const int64_t rows = x.extent(0), hidden = weight.extent(0);
  CHECK(has_shape(x, DType::f32, {rows, hidden}));
  CHECK(addend.raw() == nullptr || has_shape(addend, DType::f32, {rows, hidden}));
  CHECK(has_shape(weight, DType::bf16, {hidden}));
  CHECK(has_shape(y, DType::bf16, {rows, hidden}));
  CHECK(disjoint(x, y) &&
        (addend.raw() == nullptr || (disjoint(x, addend) && disjoint(addend, y))));
}

// Checks the tables of rotary angles: both, or neither.
inline void check_rope_tables(TensorView cos, TensorView sin, const AttentionShape& shape) {
  if (cos.raw() == nullptr && sin.raw() == nullptr) return;
  CHECK(has_shape(cos, DType::f32, {-1, shape.head_dim / 2}));
  CHECK(has_shape(sin, DType::f32, {cos.extent(0), shape.head_dim / 2}));
}

// Checks the views of a ragged pass, and that the pages are those of `shape`.
inline void check_row_map(const RowMap& map, int64_t rows, TensorView k_pages, TensorView v_pages,
                          const AttentionShape& shape) {
  CHECK(has_shape(map.positions, DType::i32, {rows}));
  CHECK(has_shape(map.sequences, DType::i32, {rows}));
  CHECK(has_shape(map.page_tables, DType::i32, {-1, -1}));
  CHECK(shape.head_dim > 0 && shape.head_dim % 2 == 0 && shape.group_size > 0);
  CHECK(shape.head_offset >= 0 &&
        shape.num_heads + shape.head_offset <= shape.num_kv_heads * shape.group_size);
  CHECK(has_shape(k_pages, DType::bf16, {-1, shape.num_kv_heads, kPageTokens, shape.head_dim}));
  CHECK(has_shape(v_pages, DType::bf16,
                  {k_pages.extent(0), shape.num_kv_heads, kPageTokens, shape.head_dim}));
}

}  // namespace outrider
