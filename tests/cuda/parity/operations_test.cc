// The parity list: every backend over the cases of bench/op_cases.h, against loops in double
// precision. Tolerances hold for each backend's order of accumulation: a term of a sum may be
// rounded twice as coarsely as fp32 (tensor cores cut off what fp32 rounds), and weights of
// attention may be bf16.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>

#include "backend/backend.h"
#include "backend/quantize.h"
#include "bench/op_cases.h"
#include "kernels/distribution.h"
#include "kernels/math.h"
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/norm_bounds.h"

namespace outrider {
namespace {

constexpr double kRoundTerm = 2 * kRoundF32;

struct NamedBackend {
  const char* name;
  std::unique_ptr<Backend> (*make)();
};

class OperationsTest : public KernelTest, public testing::WithParamInterface<NamedBackend> {
 protected:
  OperationsTest() : backend_(GetParam().make()), stream_(backend_->make_stream()) {}

  // A tensor of the backend that holds the values.
  template <class T>
  TensorView upload(const std::vector<T>& values, std::initializer_list<int64_t> extents) {
    buffers_.push_back(backend_->allocate(std::max<size_t>(values.size(), 1) * sizeof(T)));
    const TensorView view = buffers_.back().view(dtype_of<T>(), extents);
    CHECK(view.size() == static_cast<int64_t>(values.size()));
    backend_->copy_from_host(view, values.data(), stream_);
    backend_->synchronize(stream_);
    return view;
  }
  // One full of NaN: what is not written shows, and what was there before is not used.
  TensorView empty_f32(std::initializer_list<int64_t> extents) {
    return upload(std::vector<float>(product(extents), std::nanf("")), extents);
  }
  TensorView empty_bf16(std::initializer_list<int64_t> extents) {
    return upload(std::vector<bf16>(product(extents), to_bf16(std::nanf(""))), extents);
  }
  template <class T>
  std::vector<T> values(TensorView view) {
    std::vector<T> values(view.size());
    backend_->copy_to_host(values.data(), view, stream_);
    backend_->synchronize(stream_);
    return values;
  }

  static int64_t product(std::initializer_list<int64_t> extents) {
    return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
  }

  // A product of these weights; of int8, those that they are after quantize_rows.
  void expect_product(const LinearCase& c, std::vector<bf16> w, WeightFormat format) {
    const auto x = random_bf16(c.rows * c.k);
    const auto bias = random_f32(c.n);
    const TensorView part(w.data(), DType::bf16, {c.n, c.k});
    const PackedWeight packed = backend_->pack({&part, 1}, format);
    EXPECT_EQ(packed.format, format);
    const TensorView y = empty_f32({c.rows, c.n});
    backend_->linear(packed, upload(x, {c.rows, c.k}), upload(bias, {c.n}), y, stream_);
    const auto got = values<float>(y);
    const bool int8 = format == WeightFormat::int8;
    const Int8Rows quantized = int8 ? quantize_rows(part) : Int8Rows();
    const int64_t roundings = c.k + (int8 ? 19 : 18);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < c.n; o += 1 + c.n / 1024) {
        double exact = bias[o];
        double norm = std::abs(bias[o]);
        for (int64_t i = 0; i < c.k; ++i) {
          const int64_t at = o * c.k + i;
          const double weight =
              int8 ? double{quantized.scales[o]} * quantized.values[at] : to_float(w[at]);
          const double term = to_float(x[r * c.k + i]) * weight;
          exact += term;
          norm += std::abs(term);
        }
        ASSERT_NEAR(got[r * c.n + o], exact, roundings * kRoundTerm * norm)
            << c.rows << " x " << c.n << " x " << c.k << ", row " << r << ", output " << o;
      }
    }
  }

  void expect_activated(WeightFormat format);

  std::unique_ptr<Backend> backend_;
  Stream stream_;
  std::vector<Buffer> buffers_;
};

// Each of k products, the parts that they are summed in, and the bias are rounded.
TEST_P(OperationsTest, Linear) {
  for (const LinearCase& c : kLinearCases) {
    expect_product(c, random_bf16(c.n * c.k), WeightFormat::bf16);
  }
}

// So is the sum with its scale. Rows of unlike sizes have unlike scales.
TEST_P(OperationsTest, LinearInt8) {
  for (const LinearCase& c : kLinearCases) {
    auto w = random_bf16(c.n * c.k);
    for (int64_t i = 0; i < c.n * c.k; ++i) {
      w[i] = to_bf16(std::ldexp(to_float(w[i]), static_cast<int>(i / c.k % 7) - 3));
    }
    expect_product(c, w, WeightFormat::int8);
  }
}

// Zeros have a scale of 0, what is not finite one of NaN; both are their own output's alone.
TEST_P(OperationsTest, LinearInt8OfRowsWithoutAScale) {
  constexpr int64_t kOutputs = 40, kWidth = 70;
  auto w = random_bf16(kOutputs * kWidth);
  std::fill_n(w.begin() + 3 * kWidth, kWidth, bf16{});
  w[17 * kWidth + 69] = to_bf16(std::nanf(""));
  w[18 * kWidth] = to_bf16(-INFINITY);
  const TensorView part(w.data(), DType::bf16, {kOutputs, kWidth});
  const PackedWeight packed = backend_->pack({&part, 1}, WeightFormat::int8);
  for (const int64_t rows : {1, 9, 70}) {
    const TensorView y = empty_f32({rows, kOutputs});
    backend_->linear(packed, upload(random_bf16(rows * kWidth), {rows, kWidth}), {}, y, stream_);
    const auto got = values<float>(y);
    for (int64_t i = 0; i < rows * kOutputs; ++i) {
      const int64_t output = i % kOutputs;
      ASSERT_EQ(std::isnan(got[i]), output == 17 || output == 18) << rows << " rows, " << i;
      if (output == 3) {
        ASSERT_EQ(got[i], 0.0f) << rows << " rows, " << i;
      }
    }
  }
}

// The mean of squares errs by at most width / 16 + 40 roundings, of which the root keeps half;
// scaling, weighing, root and quotient add four, and the result is rounded to bf16.
TEST_P(OperationsTest, RmsNorm) {
  for (const RowCase& c : kRowCases) {
    const auto x = random_f32(c.rows * c.width, 3.0f);
    const auto weight = random_bf16(c.width);
    const TensorView y = empty_bf16({c.rows, c.width});
    backend_->rms_norm(upload(x, {c.rows, c.width}), {}, upload(weight, {c.width}), 0.5f, y,
                       stream_);
    const auto got = values<bf16>(y);
    const double error = kRoundBf16 + ((c.width / 16.0 + 40) / 2 + 5) * kRoundF32;
    expect_rms_norm(x, weight, got, c.rows, c.width, error);
  }
}

// The mean errs by width / 16 + 40 roundings at most.
TEST_P(OperationsTest, LayerNorm) {
  for (const RowCase& c : kRowCases) {
    auto x = random_f32(c.rows * c.width, 3.0f);
    for (float& value : x) value += 5.0f;
    const auto weight = random_bf16(c.width), bias = random_bf16(c.width);
    const TensorView y = empty_bf16({c.rows, c.width});
    backend_->layer_norm(upload(x, {c.rows, c.width}), {}, upload(weight, {c.width}),
                         upload(bias, {c.width}), 0.5f, y, stream_);
    const auto got = values<bf16>(y);
    expect_layer_norm(x, weight, bias, got, c.rows, c.width, c.width / 16.0 + 41);
  }
}

// The residual stream holds the sum, rounded to fp32, and the norm is that of the sum.
TEST_P(OperationsTest, NormsOfASum) {
  for (const RowCase& c : kRowCases) {
    const auto x = random_f32(c.rows * c.width, 3.0f), addend = random_f32(c.rows * c.width, 3.0f);
    std::vector<float> sums(x);
    for (size_t i = 0; i < x.size(); ++i) sums[i] += addend[i];
    const TensorView weight = upload(random_bf16(c.width), {c.width});
    const TensorView bias = upload(random_bf16(c.width), {c.width});
    const auto expect_same = [&](const auto& norm) {
      const TensorView y = empty_bf16({c.rows, c.width}), expected = empty_bf16({c.rows, c.width});
      const TensorView summed = upload(x, {c.rows, c.width});
      norm(upload(sums, {c.rows, c.width}), TensorView(), expected);
      norm(summed, upload(addend, {c.rows, c.width}), y);
      EXPECT_TRUE(same_bits(values<float>(summed), sums)) << c.rows << " x " << c.width;
      EXPECT_TRUE(same_bits(values<bf16>(y), values<bf16>(expected))) << c.rows << " x " << c.width;
    };
    expect_same([&](TensorView to, TensorView with, TensorView y) {
      backend_->rms_norm(to, with, weight, 0.5f, y, stream_);
    });
    expect_same([&](TensorView to, TensorView with, TensorView y) {
      backend_->layer_norm(to, with, weight, bias, 0.5f, y, stream_);
    });
  }
}

// The bits of math.h's activation, of the product's own bits. How close they are to exact is in
// tests/kernels/elementwise_test.cc.
void OperationsTest::expect_activated(WeightFormat format) {
  for (const LinearCase& c : kLinearCases) {
    if (c.n > 4096) continue;  // an LM head
    const auto w = random_bf16(2 * c.n * c.k, 4.0f / std::sqrt(static_cast<float>(c.k)));
    std::vector<bf16> stored = w;
    const TensorView x = upload(random_bf16(c.rows * c.k), {c.rows, c.k});
    const TensorView bias = upload(random_f32(2 * c.n), {2 * c.n});
    const auto expect_same = [&](Activation activation) {
      const bool gated = activation == Activation::swiglu;
      const int64_t n = num_inputs(activation) * c.n;
      const TensorView rows(stored.data(), DType::bf16, {n, c.k});
      const TensorView parts[] = {rows.rows(0, n / 3), rows.rows(n / 3, n)};
      const TensorView bias_of_it = bias.rows(0, n);
      const TensorView product = empty_f32({c.rows, n}), y = empty_bf16({c.rows, c.n});
      const PackedWeight plain = backend_->pack(parts, format);
      backend_->linear(plain, x, bias_of_it, product, stream_);
      const PackedWeight weight =
          gated ? backend_->pack_gate_up(parts, format) : backend_->pack(parts, format);
      backend_->reserve_activation(c.rows, n);
      backend_->linear_activated(weight, x, bias_of_it, activation, y, stream_);
      const auto products = values<float>(product);
      const auto got = values<bf16>(y);
      for (int64_t r = 0; r < c.rows; ++r) {
        for (int64_t o = 0; o < c.n; ++o) {
          const float* const of_row = products.data() + r * n;
          const float expected =
              gated ? silu_f32(of_row[o]) * of_row[c.n + o] : gelu_tanh_f32(of_row[o]);
          ASSERT_EQ(got[r * c.n + o].bits, to_bf16(expected).bits)
              << c.rows << " x " << c.n << " x " << c.k << ", row " << r << ", output " << o;
        }
      }
    };
    expect_same(Activation::gelu_tanh);
    expect_same(Activation::swiglu);
  }
}

TEST_P(OperationsTest, LinearActivated) { expect_activated(WeightFormat::bf16); }

TEST_P(OperationsTest, LinearActivatedInt8) { expect_activated(WeightFormat::int8); }

TEST_P(OperationsTest, GatherAndEmbedAreExact) {
  for (const RowCase& c : kRowCases) {
    auto table = random_bf16(c.rows * c.width);
    std::vector<int32_t> indices;
    for (int64_t i = 0; i < c.rows + 3; ++i) indices.push_back((i * 7 + 3) % c.rows);
    const auto count = static_cast<int64_t>(indices.size());
    const TensorView gathered = empty_bf16({count, c.width});
    backend_->gather_rows(upload(table, {c.rows, c.width}), upload(indices, {count}), gathered,
                          stream_);
    const auto got_rows = values<bf16>(gathered);
    // All columns but the first, to behind the first.
    const TensorView apart = empty_bf16({count, c.width});
    backend_->gather_rows(upload(table, {c.rows, c.width}).slice(1, 1, c.width),
                          upload(indices, {count}), apart.slice(1, 1, c.width), stream_);
    const auto got_apart = values<bf16>(apart);
    // Of a vocabulary that starts at 100; the last two tokens are another rank's.
    std::vector<int32_t> tokens;
    for (int32_t index : indices) tokens.push_back(100 + index);
    tokens[count - 2] = 99;
    tokens[count - 1] = static_cast<int32_t>(100 + c.rows);
    const TensorView part(table.data(), DType::bf16, {c.rows, c.width});
    const PackedWeight packed = backend_->pack({&part, 1}, WeightFormat::bf16);
    const TensorView embedded = empty_f32({count, c.width});
    backend_->embed(packed, upload(tokens, {count}), 100, embedded, stream_);
    const auto got_embedded = values<float>(embedded);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t i = 0; i < c.width; ++i) {
        const bf16 expected = table[indices[r] * c.width + i];
        ASSERT_EQ(got_rows[r * c.width + i].bits, expected.bits);
        if (i > 0) {
          ASSERT_EQ(got_apart[r * c.width + i].bits, expected.bits);
        } else {
          ASSERT_TRUE(std::isnan(to_float(got_apart[r * c.width])));  // as it was
        }
        ASSERT_EQ(got_embedded[r * c.width + i], r < count - 2 ? to_float(expected) : 0.0f);
      }
    }
  }
}

TEST_P(OperationsTest, ExpandLogitsIsExact) {
  for (const RowCase& c : kRowCases) {
    const int64_t vocab_size = 2 * c.width + 3;
    const auto x = random_f32(c.rows * c.width);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < c.width; ++i) tokens.push_back(2 * i + i % 2);
    for (const int64_t num_tokens : {c.width, c.width / 2}) {  // columns behind them are nobody's
      tokens.resize(num_tokens);
      std::vector<float> expected(c.rows * vocab_size, kUnscoredLogit);
      for (int64_t i = 0; i < c.rows * num_tokens; ++i) {
        const int64_t r = i / num_tokens, column = i % num_tokens;
        expected[r * vocab_size + tokens[column]] = x[r * c.width + column];
      }
      const TensorView y = empty_f32({c.rows, vocab_size});
      backend_->expand_logits(upload(x, {c.rows, c.width}), upload(tokens, {num_tokens}), y,
                              stream_);
      EXPECT_TRUE(same_bits(values<float>(y), expected)) << c.rows << " x " << c.width;
    }
  }
}

// Rows of no entries, of one, of many, and two that share theirs.
TEST_P(OperationsTest, TableLogitsAreTheTables) {
  constexpr int64_t kVocab = 777;
  const std::vector<TableRow> of_token = {{0, 0}, {0, 1}, {1, 70}, {1, 70}, {70, 71}};
  std::vector<TableRow> rows(kVocab, {0, 0});
  std::copy(of_token.begin(), of_token.end(), rows.begin());
  std::vector<int32_t> listed = {0};
  for (int32_t i = 0; i < 69; ++i) listed.push_back(i * 11 + i % 3);
  listed.push_back(kVocab - 1);
  const auto logits = random_f32(static_cast<int64_t>(listed.size()));
  std::vector<int32_t> tokens = {4, 0, 2, 1, 3, 776, 2};
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> flat;
  for (const TableRow& row : rows) flat.insert(flat.end(), {row.begin, row.end});
  const TensorView row_view = upload(flat, {2 * kVocab});
  const TensorView token_view = upload(listed, {static_cast<int64_t>(listed.size())});
  const TensorView logit_view = upload(logits, {static_cast<int64_t>(logits.size())});
  const LogitTable table = {reinterpret_cast<const TableRow*>(row_view.data<int32_t>()),
                            token_view.data<int32_t>(), logit_view.data<float>()};
  const TensorView y = empty_f32({count, kVocab});
  backend_->table_logits(upload(tokens, {count}), table, y, stream_);
  const auto got = values<float>(y);
  for (int64_t r = 0; r < count; ++r) {
    const TableRow row = rows[tokens[r]];
    std::vector<float> expected(kVocab, kUnscoredLogit);
    for (int32_t i = row.begin; i < row.end; ++i) expected[listed[i]] = logits[i];
    for (int64_t v = 0; v < kVocab; ++v)
      ASSERT_EQ(got[r * kVocab + v], expected[v]) << r << ", " << v;
  }
}

// Sequences of random rows, whose pages lie in scrambled order and hold NaN (k) and what is barely
// finite (v) where nothing was written.
class AttentionOperationsTest : public OperationsTest {
 protected:
  void make(const AttentionCase& c) {
    shape_ = c.shape;
    length_ = c.context + c.rows;
    const int64_t max_pages = (length_ + kPageTokens - 1) / kPageTokens + 1;
    std::vector<int32_t> tables(c.sequences * max_pages);
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), random_);
    tables_ = upload(tables, {c.sequences, max_pages});
    backend_->reserve_attention(c.sequences * length_, max_pages * kPageTokens, shape_);
    const auto num_pages = static_cast<int64_t>(tables.size());
    k_pages_ = empty_bf16({num_pages, shape_.num_kv_heads, kPageTokens, shape_.head_dim});
    const std::initializer_list<int64_t> of_pages = {num_pages, shape_.num_kv_heads, kPageTokens,
                                                     shape_.head_dim};
    v_pages_ = upload(std::vector<bf16>(product(of_pages), to_bf16(3e38f)), of_pages);
    std::vector<float> cos, sin;
    for (int64_t p = 0; p < length_; ++p) {
      for (int64_t i = 0; i < shape_.head_dim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / shape_.head_dim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    cos_ = upload(cos, {length_, shape_.head_dim / 2});
    sin_ = upload(sin, {length_, shape_.head_dim / 2});
    rotated_.assign(c.sequences * length_ * shape_.qkv_width(), 0.0f);
  }

  // q and k are left as they are from here on.
  void rotate_nothing() { cos_ = sin_ = {}; }

  // Positions [begin, end) of every sequence -> y, if `attend`; the rotated rows are kept.
  std::vector<bf16> run(int64_t sequences, int64_t begin, int64_t end, bool attend) {
    std::vector<int32_t> positions, of_sequence;
    for (int32_t s = 0; s < sequences; ++s) {
      for (int64_t p = begin; p < end; ++p) {
        positions.push_back(static_cast<int32_t>(p));
        of_sequence.push_back(s);
      }
    }
    const auto rows = static_cast<int64_t>(positions.size());
    if (rows == 0) return {};
    const auto original = random_f32(rows * shape_.qkv_width(), 1.5f);
    const TensorView qkv = upload(original, {rows, shape_.qkv_width()});
    const RowMap map = {upload(positions, {rows}), upload(of_sequence, {rows}), tables_};
    backend_->rope_and_cache(qkv, cos_, sin_, k_pages_, v_pages_, map, shape_, stream_);
    const auto after = values<float>(qkv);
    if (cos_.raw() == nullptr) {
      EXPECT_TRUE(same_bits(after, original));
    } else {
      expect_rotated(original, after, positions);
    }
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(
          after.begin() + r * shape_.qkv_width(), shape_.qkv_width(),
          rotated_.begin() + (of_sequence[r] * length_ + positions[r]) * shape_.qkv_width());
    }
    if (!attend) return {};
    const TensorView y = empty_bf16({rows, shape_.num_heads * shape_.head_dim});
    backend_->attention(qkv, k_pages_, v_pages_, y, map, shape_, stream_);
    return values<bf16>(y);
  }

  // Two products and a sum of fp32, on tables of fp32; v is left alone.
  void expect_rotated(const std::vector<float>& original, const std::vector<float>& after,
                      const std::vector<int32_t>& positions) {
    const auto cos = values<float>(cos_), sin = values<float>(sin_);
    const int64_t half = shape_.head_dim / 2;
    const int64_t num_rotated = (shape_.num_heads + shape_.num_kv_heads) * shape_.head_dim;
    for (size_t r = 0; r < positions.size(); ++r) {
      const float* in = original.data() + r * shape_.qkv_width();
      const float* out = after.data() + r * shape_.qkv_width();
      for (int64_t i = 0; i < shape_.qkv_width(); ++i) {
        const int64_t d = i % shape_.head_dim;
        double exact = in[i], tolerance = 0.0;
        if (i < num_rotated) {
          const double other = d < half ? -in[i + half] : in[i - half];
          const double a = in[i] * double{cos[positions[r] * half + d % half]};
          const double b = other * sin[positions[r] * half + d % half];
          exact = a + b;
          tolerance = 2 * kRoundF32 * (std::abs(a) + std::abs(b));
        }
        ASSERT_NEAR(out[i], exact, tolerance) << "row " << r << ", element " << i;
      }
    }
  }

  const float* row(int64_t sequence, int64_t position) const {
    return rotated_.data() + (sequence * length_ + position) * shape_.qkv_width();
  }

  void expect_close(int64_t sequence, int64_t position, int64_t head, const bf16* y) const;

  // The case's context, and then its rows.
  void attend_and_expect_close(const AttentionCase& c) {
    run(c.sequences, 0, c.context, /*attend=*/false);
    const auto y = run(c.sequences, c.context, length_, /*attend=*/true);
    int64_t at = 0;
    for (int64_t s = 0; s < c.sequences; ++s) {
      for (int64_t p = c.context; p < length_; ++p) {
        for (int64_t h = 0; h < shape_.num_heads; ++h, at += shape_.head_dim) {
          expect_close(s, p, h, y.data() + at);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  AttentionShape shape_;
  int64_t length_;
  TensorView tables_, k_pages_, v_pages_, cos_, sin_;
  std::vector<float> rotated_;  // [sequences, length, qkv_width]
};

// mma may round each product and each sum, by two units; the CPU and one chain round less. A chain
// over the context adds roundings a token, and a few for the splits, in which CUDA cuts positions.
void AttentionOperationsTest::expect_close(int64_t sequence, int64_t position, int64_t head,
                                           const bf16* y) const {
  constexpr int64_t kCudaSplit = 128;
  const int64_t dim = shape_.head_dim;
  const int64_t kv_head = (head + shape_.head_offset) / shape_.group_size;
  const int64_t context = position + 1;
  const auto element = [&](int64_t t, int64_t of_head, int64_t i) {
    return double{to_float(to_bf16(row(sequence, t)[of_head * dim + i]))};
  };
  const AttentionReference reference(
      dim, context, GetParam().name == std::string("cuda") ? kCudaSplit : context,
      static_cast<double>(4 * dim + 16), [&](int64_t i) { return element(position, head, i); },
      [&](int64_t t, int64_t i) { return element(t, shape_.num_heads + kv_head, i); });
  for (int64_t i = 0; i < dim; ++i) {
    const auto [exact, tolerance] = reference.mean(
        static_cast<double>(4 * context + 80),
        [&](int64_t t) { return element(t, shape_.num_heads + shape_.num_kv_heads + kv_head, i); });
    ASSERT_NEAR(to_float(y[i]), exact, tolerance)
        << shape_.num_heads << "/" << shape_.num_kv_heads << " heads of " << dim << ", sequence "
        << sequence << ", position " << position << ", head " << head << ", element " << i;
  }
}

TEST_P(AttentionOperationsTest, RopeAndAttention) {
  for (const AttentionCase& c : kAttentionCases) {
    make(c);
    attend_and_expect_close(c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionOperationsTest, AttentionWithoutRope) {
  const AttentionCase& c = kAttentionCases[1];
  make(c);
  rotate_nothing();
  attend_and_expect_close(c);
}

const NamedBackend kBackends[] = {{"cpu", make_cpu_backend},
                                  {"cuda", [] { return make_cuda_backend(0); }}};
const auto name_of = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(, OperationsTest, testing::ValuesIn(kBackends), name_of);
INSTANTIATE_TEST_SUITE_P(, AttentionOperationsTest, testing::ValuesIn(kBackends), name_of);

}  // namespace
}  // namespace outrider
