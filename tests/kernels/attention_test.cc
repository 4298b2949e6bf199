#include "kernels/cpu/attention.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "bench/op_cases.h"
#include "tests/kernels/attention_reference.h"

namespace outrider::cpu {
namespace {

struct Row {
  int32_t sequence;
  int32_t position;
};

// Some sequences of random qkv rows, and a KV cache whose pages lie in scrambled order and hold NaN
// where nothing was written.
class AttentionTest : public KernelTest {
 protected:
  void make(const AttentionCase& c) {
    shape_ = c.shape;
    sequences_ = c.sequences;
    length_ = c.context + c.rows;
    max_pages_ = (length_ + kPageTokens - 1) / kPageTokens + 1;
    tables_.resize(sequences_ * max_pages_);
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), random_);
    qkv_ = random_f32(sequences_ * length_ * shape_.qkv_width(), 1.5f);
    cos_.clear();
    sin_.clear();
    for (int64_t p = 0; p < length_; ++p) {
      for (int64_t i = 0; i < shape_.head_dim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / shape_.head_dim);
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    clear_cache();
  }

  void clear_cache() {
    const size_t elements = tables_.size() * shape_.num_kv_heads * kPageTokens * shape_.head_dim;
    k_.assign(elements, to_bf16(std::nanf("")));
    v_.assign(elements, to_bf16(std::nanf("")));
  }

  // Rows [begin, end) of every sequence, sequence by sequence.
  std::vector<Row> rows_between(int64_t begin, int64_t end) const {
    std::vector<Row> rows;
    for (int32_t s = 0; s < sequences_; ++s) {
      for (int64_t p = begin; p < end; ++p) rows.push_back({s, static_cast<int32_t>(p)});
    }
    return rows;
  }

  const float* input(Row row) const {
    return qkv_.data() + (row.sequence * length_ + row.position) * shape_.qkv_width();
  }

  struct Output {
    std::vector<float> qkv;  // rotated
    std::vector<bf16> y;
  };

  // One ragged pass.
  Output run(const std::vector<Row>& rows, Isa isa) {
    Output out;
    std::vector<int32_t> positions, sequences;
    for (Row row : rows) {
      positions.push_back(row.position);
      sequences.push_back(row.sequence);
      out.qkv.insert(out.qkv.end(), input(row), input(row) + shape_.qkv_width());
    }
    const RowPointers map = {positions.data(), sequences.data(), tables_.data(), max_pages_};
    const int64_t count = rows.size();
    out.y.resize(count * shape_.num_heads * shape_.head_dim);
    std::vector<float> scratch(attention_scratch_size(max_pages_, shape_.head_dim), std::nanf(""));
    rope_and_cache(out.qkv.data(), cos_.data(), sin_.data(), k_.data(), v_.data(), map, count,
                   shape_, isa);
    attention(out.qkv.data(), k_.data(), v_.data(), out.y.data(), scratch.data(), map, count,
              shape_, isa);
    return out;
  }

  // Where element i of a row's key or value lies in the pages.
  int64_t page_start(int32_t sequence, int64_t position, int64_t kv_head) const {
    const int64_t page = tables_[sequence * max_pages_ + position / kPageTokens];
    return (page * shape_.num_kv_heads + kv_head) * kPageTokens * shape_.head_dim;
  }
  bf16 key(int32_t sequence, int64_t position, int64_t kv_head, int64_t i) const {
    return k_[page_start(sequence, position, kv_head) +
              (i / 2 * kPageTokens + position % kPageTokens) * 2 + i % 2];
  }
  bf16 value(int32_t sequence, int64_t position, int64_t kv_head, int64_t i) const {
    return v_[page_start(sequence, position, kv_head) +
              (position % kPageTokens / 2 * shape_.head_dim + i) * 2 + position % 2];
  }

  void expect_close(const float* q, Row row, int64_t head, const bf16* y) const;

  AttentionShape shape_;
  int64_t sequences_, length_, max_pages_;
  std::vector<int32_t> tables_;
  std::vector<float> qkv_, cos_, sin_;
  std::vector<bf16> k_, v_;
};

// A dot product is head_dim roundings, of two chains, and three: their sum, the scale, the product
// with it. A chain over the context adds a rounding a token, to the values and (in 16 lanes) to the
// sum.
void AttentionTest::expect_close(const float* q, Row row, int64_t head, const bf16* y) const {
  const int64_t kv_head = (head + shape_.head_offset) / shape_.group_size;
  const int64_t dim = shape_.head_dim;
  const int64_t context = row.position + 1;
  const AttentionReference reference(
      dim, context, context, static_cast<double>(dim + 3),
      [&](int64_t i) { return to_float(to_bf16(q[i])); },
      [&](int64_t t, int64_t i) { return to_float(key(row.sequence, t, kv_head, i)); });
  for (int64_t i = 0; i < dim; ++i) {
    const auto [exact, tolerance] = reference.mean(
        static_cast<double>(context + context / 16 + 8),
        [&](int64_t t) { return double{to_float(value(row.sequence, t, kv_head, i))}; });
    ASSERT_NEAR(to_float(y[i]), exact, tolerance)
        << "sequence " << row.sequence << ", position " << row.position << ", head " << head;
  }
}

TEST_F(AttentionTest, IsCloseToDouble) {
  for (const AttentionCase& c : kAttentionCases) {
    make(c);
    run(rows_between(0, c.context), available_isas().back());
    const auto rows = rows_between(c.context, length_);
    const Output out = run(rows, available_isas().back());
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t h = 0; h < shape_.num_heads; ++h) {
        expect_close(out.qkv.data() + r * shape_.qkv_width() + h * shape_.head_dim, rows[r], h,
                     out.y.data() + (r * shape_.num_heads + h) * shape_.head_dim);
      }
    }
  }
}

// Two products and a sum of fp32, on tables of fp32.
TEST_F(AttentionTest, RopeRotatesHalvesAndCachesKAndV) {
  for (const AttentionCase& c : kAttentionCases) {
    make(c);
    const auto rows = rows_between(0, length_);
    const Output out = run(rows, Isa::scalar);
    const int64_t half = shape_.head_dim / 2;
    const int64_t rotated = (shape_.num_heads + shape_.num_kv_heads) * shape_.head_dim;
    for (size_t r = 0; r < rows.size(); ++r) {
      const float* in = input(rows[r]);
      const float* after = out.qkv.data() + r * shape_.qkv_width();
      for (int64_t i = 0; i < rotated; ++i) {
        const int64_t d = i % shape_.head_dim;
        const double other = d < half ? -in[i + half] : in[i - half];
        const double cosine = cos_[rows[r].position * half + d % half];
        const double sine = sin_[rows[r].position * half + d % half];
        const double tolerance =
            2 * kRoundF32 * (std::abs(in[i] * cosine) + std::abs(other * sine));
        ASSERT_NEAR(after[i], in[i] * cosine + other * sine, tolerance);
      }
      for (int64_t h = 0; h < shape_.num_kv_heads; ++h) {
        const float* k = after + (shape_.num_heads + h) * shape_.head_dim;
        const float* v = in + rotated + h * shape_.head_dim;
        for (int64_t i = 0; i < shape_.head_dim; ++i) {
          const Row row = rows[r];
          ASSERT_EQ(key(row.sequence, row.position, h, i).bits, to_bf16(k[i]).bits);
          ASSERT_EQ(value(row.sequence, row.position, h, i).bits, to_bf16(v[i]).bits);
        }
      }
    }
  }
}

// Without tables of angles.
TEST_F(AttentionTest, CachesWithoutRotating) {
  for (const AttentionCase& c : kAttentionCases) {
    make(c);
    const auto rows = rows_between(0, length_);
    for (const Isa isa : available_isas()) {
      clear_cache();
      std::vector<int32_t> positions, sequences;
      std::vector<float> qkv;
      for (const Row row : rows) {
        positions.push_back(row.position);
        sequences.push_back(row.sequence);
        qkv.insert(qkv.end(), input(row), input(row) + shape_.qkv_width());
      }
      const std::vector<float> original = qkv;
      const RowPointers map = {positions.data(), sequences.data(), tables_.data(), max_pages_};
      rope_and_cache(qkv.data(), nullptr, nullptr, k_.data(), v_.data(), map,
                     static_cast<int64_t>(rows.size()), shape_, isa);
      EXPECT_TRUE(same_bits(qkv, original));
      for (const Row row : rows) {
        for (int64_t h = 0; h < shape_.num_kv_heads; ++h) {
          const float* k = input(row) + (shape_.num_heads + h) * shape_.head_dim;
          const float* v = k + shape_.num_kv_heads * shape_.head_dim;
          for (int64_t i = 0; i < shape_.head_dim; ++i) {
            ASSERT_EQ(key(row.sequence, row.position, h, i).bits, to_bf16(k[i]).bits);
            ASSERT_EQ(value(row.sequence, row.position, h, i).bits, to_bf16(v[i]).bits);
          }
        }
      }
    }
  }
}

TEST_F(AttentionTest, EveryIsaGivesTheSameBits) {
  for (const AttentionCase& c : kAttentionCases) {
    make(c);
    // Queries of denormals, which count as zeros, and of what rounds up to no denormal.
    for (float& x : qkv_) x = random_() % 16 == 0 ? 0x1.fffp-127f : x;
    run(rows_between(0, c.context), available_isas().back());
    const auto rows = rows_between(c.context, length_);
    const Output expected = run(rows, Isa::scalar);
    for (Isa isa : available_isas()) {
      const Output out = run(rows, isa);
      EXPECT_TRUE(same_bits(out.qkv, expected.qkv)) << isa_name(isa);
      EXPECT_TRUE(same_bits(out.y, expected.y)) << isa_name(isa);
    }
  }
}

// One pass over everything, passes of three positions, single rows, and single rows of several
// sequences in one pass give the same bits.
TEST_F(AttentionTest, ChunksDoNotShow) {
  for (const AttentionCase& c : kAttentionCases) {
    make({c.shape, c.sequences, 0, std::min<int64_t>(c.context + c.rows, 70)});
    const int64_t width = shape_.num_heads * shape_.head_dim;
    // Values near zero: products of them are flushed, and sums may end as a zero of either sign.
    for (int64_t r = 0; r < sequences_ * length_; ++r) {
      float* const v = qkv_.data() + (r + 1) * shape_.qkv_width() - shape_.head_dim;
      for (int64_t i = 0; i < shape_.head_dim; i += 2) v[i] = r % 3 == 0 ? 0.0f : -0x1p-126f;
    }
    for (const Isa isa : available_isas()) {
      const Output whole = run(rows_between(0, length_), isa);
      for (int64_t chunk : {1, 3, 16}) {
        clear_cache();
        for (int64_t begin = 0; begin < length_; begin += chunk) {
          auto rows = rows_between(begin, std::min(begin + chunk, length_));
          // Sequences interleaved: the last position of each first.
          if (chunk == 3)
            std::stable_sort(rows.begin(), rows.end(),
                             [](Row a, Row b) { return a.position > b.position; });
          const Output part = run(rows, isa);
          for (size_t r = 0; r < rows.size(); ++r) {
            const int64_t at = rows[r].sequence * length_ + rows[r].position;
            ASSERT_EQ(std::memcmp(part.y.data() + r * width, whole.y.data() + at * width,
                                  width * sizeof(bf16)),
                      0)
                << isa_name(isa) << ", chunks of " << chunk << ", sequence " << rows[r].sequence
                << ", position " << rows[r].position;
          }
        }
      }
    }
  }
}

// A row whose k or v is not a number fails, and so do those that see it, in the heads that do; all
// others in the same pass and page keep their bits. With q it is that row's head alone.
TEST_F(AttentionTest, WhatIsNotFiniteStaysWithThoseWhoSeeIt) {
  const int64_t bad = 21;
  for (const char what : {'q', 'k', 'v'}) {
    make({{9, 3, 64, 3, 0}, 1, 0, 26});
    const auto rows = rows_between(0, length_);
    for (const Isa isa : available_isas()) {
      clear_cache();
      const Output expected = run(rows, isa);
      const std::vector<float> kept = qkv_;
      const int64_t head = what == 'q'   ? 4
                           : what == 'k' ? shape_.num_heads + 1
                                         : shape_.num_heads + shape_.num_kv_heads + 1;
      qkv_[bad * shape_.qkv_width() + head * shape_.head_dim + 5] =
          what == 'v' ? std::numeric_limits<float>::infinity() : std::nanf("");
      clear_cache();
      const Output out = run(rows, isa);
      qkv_ = kept;
      for (int64_t at = 0; at < length_ * shape_.num_heads; ++at) {
        const int64_t r = at / shape_.num_heads, h = at % shape_.num_heads;
        const bool sees = what == 'q' ? r == bad && h == 4 : r >= bad && h / 3 == 1;
        const bf16* const y = out.y.data() + at * shape_.head_dim;
        if (sees) {
          ASSERT_TRUE(std::isnan(to_float(y[0]))) << isa_name(isa) << what << r << " " << h;
        } else {
          ASSERT_EQ(std::memcmp(y, expected.y.data() + at * shape_.head_dim,
                                shape_.head_dim * sizeof(bf16)),
                    0)
              << isa_name(isa) << ", " << what << ", row " << r << ", head " << h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace outrider::cpu
