// Attention and the KV cache on the device: how rows come, in what company, and in how much
// workspace must not show, bit for bit. How close it is to exact is in operations_test.cc.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "device_array.h"
#include "tests/kernels/kernel_test.h"

namespace outrider::cuda {
namespace {

struct Row {
  int32_t sequence;
  int32_t position;  // -1: padding
};

// Sequences of random qkv rows, and pages in scrambled order that hold NaN (k) and what is barely
// finite (v) where nothing was written.
class CudaAttentionTest : public KernelTest {
 protected:
  void make(const AttentionShape& shape, int64_t sequences, int64_t length) {
    shape_ = shape;
    sequences_ = sequences;
    length_ = length;
    max_pages_ = (length + kPageTokens - 1) / kPageTokens + 1;
    context_ = max_pages_ * kPageTokens;
    tables_.resize(sequences * max_pages_);
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), random_);
    qkv_ = random_f32(sequences * length * shape.qkv_width(), 1.5f);
    cos_ = random_f32(length * shape.head_dim / 2);
    sin_ = random_f32(length * shape.head_dim / 2);
    clear_cache();
  }

  void clear_cache() {
    const size_t elements = tables_.size() * shape_.num_kv_heads * kPageTokens * shape_.head_dim;
    k_.assign(elements, to_bf16(std::nanf("")));
    v_.assign(elements, to_bf16(3e38f));
  }

  std::vector<Row> rows_between(int64_t begin, int64_t end) const {
    std::vector<Row> rows;
    for (int32_t s = 0; s < sequences_; ++s) {
      for (int64_t p = begin; p < end; ++p) rows.push_back({s, static_cast<int32_t>(p)});
    }
    return rows;
  }

  int64_t y_width() const { return shape_.num_heads * shape_.head_dim; }

  float* input(Row row) {
    return qkv_.data() + (row.sequence * length_ + row.position) * shape_.qkv_width();
  }

  // One ragged pass, in workspace for `together` rows at a time -> y. multiprocessors: of
  // attention_of_few, which does it then.
  std::vector<bf16> run(const std::vector<Row>& rows, int64_t together,
                        int64_t multiprocessors = 0) {
    std::vector<int32_t> positions, sequences;
    std::vector<float> qkv;
    for (Row row : rows) {
      positions.push_back(row.position);
      sequences.push_back(row.sequence);
      const float* from = input({row.sequence, std::max(row.position, 0)});
      qkv.insert(qkv.end(), from, from + shape_.qkv_width());
    }
    const DeviceArray<int32_t> device_positions(positions), device_sequences(sequences);
    const DeviceArray<int32_t> tables(tables_);
    const DeviceArray<float> device_qkv(qkv), cos(cos_), sin(sin_);
    const DeviceArray<bf16> k(k_), v(v_);
    const size_t bytes = attention_workspace_bytes(together, context_, shape_);
    const DeviceArray<float> workspace(std::vector<float>(bytes / sizeof(float), std::nanf("")));
    const auto count = static_cast<int64_t>(rows.size());
    const DeviceArray<bf16> y(std::vector<bf16>(count * y_width(), to_bf16(1.0f)));
    const RowPointers map = {device_positions.data(), device_sequences.data(), tables.data(),
                             max_pages_};
    const float* const cosines = rotates_ ? cos.data() : nullptr;
    const float* const sines = rotates_ ? sin.data() : nullptr;
    if (multiprocessors > 0) {
      const DeviceArray<unsigned> arrivals(kFewCounters);
      const auto attend = [&](bool reads_early) {
        attention_of_few(device_qkv.data(), cosines, sines, k.data(), v.data(), y.data(),
                         workspace.data(), arrivals.data(), map, count, reads_early, shape_,
                         multiprocessors, nullptr);
        return y.values();
      };
      // The second time its keys are cached and its splits in the workspace before it begins.
      const auto first = attend(true);
      EXPECT_TRUE(same_bits(attend(true), first));
      EXPECT_TRUE(same_bits(attend(false), first));
      EXPECT_EQ(arrivals.values(), std::vector<unsigned>(kFewCounters));
    } else {
      rope_and_cache(device_qkv.data(), cosines, sines, k.data(), v.data(), map, count, shape_,
                     nullptr);
      attention(device_qkv.data(), k.data(), v.data(), y.data(), workspace.data(), bytes, map,
                count, context_, shape_, nullptr);
    }
    k_ = k.values();
    v_ = v.values();
    return y.values();
  }

  // y of one row of a pass.
  std::vector<bf16> row_of(const std::vector<bf16>& y, int64_t row) const {
    return {y.begin() + row * y_width(), y.begin() + (row + 1) * y_width()};
  }

  // What attention_of_few gives and caches is what the others do, whatever number of blocks it has.
  void expect_few_the_same(const std::vector<Row>& rows) {
    const auto before_k = k_, before_v = v_;
    const auto y = run(rows, 16);
    const auto cached_k = k_, cached_v = v_;
    for (int64_t multiprocessors : {1, 100}) {
      k_ = before_k, v_ = before_v;
      const auto of_few = run(rows, 16, multiprocessors);
      EXPECT_TRUE(same_bits(of_few, y)) << shape_.head_dim << ", " << rows.size() << " rows";
      EXPECT_TRUE(same_bits(k_, cached_k) && same_bits(v_, cached_v)) << shape_.head_dim;
    }
  }

  bool rotates_ = true;
  AttentionShape shape_;
  int64_t sequences_, length_, max_pages_;
  int64_t context_;  // that workspace is laid out for: whole page tables, unless a test has less
  std::vector<int32_t> tables_;
  std::vector<float> qkv_, cos_, sin_;
  std::vector<bf16> k_, v_;
};

// {num_heads, num_kv_heads, head_dim, group_size, head_offset}
constexpr AttentionShape kLong = {2, 1, 16, 2, 0};        // several splits
constexpr AttentionShape kManyHeads = {67, 1, 8, 70, 2};  // more than a block takes at a time
constexpr AttentionShape kWide = {3, 1, 256, 4, 1};

// One pass over everything; then passes of one, three (interleaved: the last position of each
// sequence first) and sixteen positions.
TEST_F(CudaAttentionTest, ChunksDoNotShow) {
  const std::pair<AttentionShape, int64_t> cases[] = {
      {kLong, 290},           {kManyHeads, 5},        {kWide, 18},
      {{9, 3, 64, 3, 0}, 18}, {{4, 3, 64, 3, 2}, 18}, {{2, 2, 128, 1, 0}, 18},
      {{2, 1, 80, 2, 0}, 18}, {{4, 1, 96, 8, 3}, 18}, {{3, 1, 2, 4, 1}, 18},
      {{5, 2, 38, 4, 1}, 18},
  };
  for (const auto& [shape, length] : cases) {
    make(shape, 2, length);
    const auto whole = run(rows_between(0, length_), 2 * length_);
    for (int64_t chunk : {1, 3, 16}) {
      if (chunk < 16 && length > 100) continue;
      clear_cache();
      for (int64_t begin = 0; begin < length_; begin += chunk) {
        auto rows = rows_between(begin, std::min(begin + chunk, length_));
        if (chunk == 3) {
          std::stable_sort(rows.begin(), rows.end(),
                           [](Row a, Row b) { return a.position > b.position; });
        }
        const auto y = run(rows, static_cast<int64_t>(rows.size()));
        for (size_t r = 0; r < rows.size(); ++r) {
          const int64_t at = rows[r].sequence * length_ + rows[r].position;
          ASSERT_TRUE(same_bits(row_of(y, r), row_of(whole, at)))
              << "head_dim " << shape.head_dim << ", chunks of " << chunk << ", sequence "
              << rows[r].sequence << ", position " << rows[r].position;
        }
      }
    }
  }
}

// Also of rows that begin a split, stand side by side in a sequence or apart, or are nobody's.
TEST_F(CudaAttentionTest, FewRowsGetTheSameBits) {
  const AttentionShape shapes[] = {kLong,
                                   {3, 1, 112, 4, 1},
                                   {9, 3, 64, 3, 0},
                                   {4, 2, 64, 3, 2},
                                   {20, 1, 32, 20, 0},
                                   {2, 2, 128, 1, 0},
                                   {2, 1, 96, 2, 0},
                                   {5, 2, 80, 4, 1}};
  for (const AttentionShape& shape : shapes) {
    make(shape, 2, 262);
    expect_few_the_same({{1, 0}, {0, 0}, {0, -1}});
    expect_few_the_same({{0, -1}, {0, -1}});
    run(rows_between(0, 252), 504);
    expect_few_the_same(rows_between(252, 253));
    expect_few_the_same(rows_between(252, 260));
    clear_cache();
    run(rows_between(0, 127), 254);
    expect_few_the_same({{1, 127}, {0, -1}, {1, 128}, {0, 127}, {1, 129}, {1, 130}});
  }
}

// More splits than a query has lanes to merge them.
TEST_F(CudaAttentionTest, FewRowsOfALongContextGetTheSameBits) {
  make({1, 1, 16, 1, 0}, 1, 2100);
  run(rows_between(0, 2096), 2096);
  expect_few_the_same(rows_between(2096, 2099));
}

TEST_F(CudaAttentionTest, FewRowsThatAreNotRotatedGetTheSameBits) {
  rotates_ = false;
  make({9, 3, 64, 3, 0}, 2, 132);
  run(rows_between(0, 126), 252);
  expect_few_the_same(rows_between(126, 130));
}

TEST_F(CudaAttentionTest, FewRowsKeepWhatIsNotFiniteApart) {
  make({4, 2, 32, 2, 0}, 2, 20);
  run(rows_between(0, 12), 24);
  input({0, 13})[4 * 32 + 5] = std::nanf("");                           // of the first key
  input({1, 12})[6 * 32 + 7] = std::numeric_limits<float>::infinity();  // of the first value
  expect_few_the_same(rows_between(12, 16));
}

TEST_F(CudaAttentionTest, WorkspaceDoesNotShow) {
  make(kLong, 2, 390);
  run(rows_between(0, 270), 540);
  const auto rows = rows_between(270, 290);
  const auto y = run(rows, 40);
  for (int64_t together : {1, 7, 39}) EXPECT_TRUE(same_bits(run(rows, together), y)) << together;
  context_ = 290;  // three splits, of the four of a page table
  for (int64_t together : {7, 40}) EXPECT_TRUE(same_bits(run(rows, together), y)) << together;
}

// What the first two splits give cancels: were it not added up before the third's, that would be
// lost.
TEST_F(CudaAttentionTest, SplitsAreAddedInOrder) {
  constexpr int64_t kBegin = 2 * kSplitTokens;  // of the third
  rotates_ = false;
  make({1, 1, 16, 1, 0}, 1, kBegin + 4);
  for (int32_t position = 0; position < length_; ++position) {
    float* const q = input({0, position});
    float* const v = q + 2 * shape_.head_dim;
    std::fill_n(q, shape_.head_dim, 0.0f);  // all weights are one
    const float value = position < kSplitTokens ? 0x1p60f : position < kBegin ? -0x1p60f : 1.0f;
    std::fill_n(v, shape_.head_dim, value);
  }
  run(rows_between(0, kBegin), kBegin);
  const auto rows = rows_between(kBegin, length_);
  const auto y = run(rows, 4);
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto of_third = static_cast<float>(r + 1);
    const bf16 mean = to_bf16(of_third * (1.0f / (kBegin + of_third)));
    EXPECT_TRUE(same_bits(row_of(y, r), std::vector<bf16>(y_width(), mean))) << r;
  }
  expect_few_the_same(rows);
}

// Padding comes out as zeros, writes nothing, and changes no other row, wherever it stands.
TEST_F(CudaAttentionTest, PaddedRowsAreLeftOut) {
  make({4, 3, 64, 3, 2}, 2, 21);
  run(rows_between(0, 16), 32);
  const auto rows = rows_between(16, 21);
  const auto y = run(rows, 10);
  const auto k = k_, v = v_;
  std::vector<Row> padded = {{0, -1}};
  for (Row row : rows) {
    padded.push_back(row);
    if (row.position % 2 == 0) padded.push_back({row.sequence, -1});
  }
  padded.push_back({1, -1});
  const auto y_padded = run(padded, 20);
  EXPECT_TRUE(same_bits(k_, k));
  EXPECT_TRUE(same_bits(v_, v));
  int64_t next = 0;
  for (size_t r = 0; r < padded.size(); ++r) {
    const auto expected = padded[r].position < 0 ? std::vector<bf16>(y_width()) : row_of(y, next++);
    EXPECT_TRUE(same_bits(row_of(y_padded, r), expected)) << r;
  }
  const auto alone = run({{0, -1}, {1, -1}}, 2);
  EXPECT_TRUE(same_bits(alone, std::vector<bf16>(alone.size())));
}

// A value or key that is not finite makes the rows that see it NaN, and leaves those before it, in
// the same tile, as they were.
TEST_F(CudaAttentionTest, NotFiniteStaysBehindItsPosition) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (int64_t part : {1, 2}) {  // of q, k, v
      make({2, 1, 32, 2, 0}, 1, 14);
      const auto y = run(rows_between(0, length_), length_);
      input({0, 9})[part == 1 ? 2 * 32 + 5 : 3 * 32 + 5] = bad;
      clear_cache();
      const auto y_bad = run(rows_between(0, length_), length_);
      for (int64_t r = 0; r < length_; ++r) {
        if (r < 9) {
          EXPECT_TRUE(same_bits(row_of(y_bad, r), row_of(y, r))) << r;
        } else {
          EXPECT_TRUE(std::isnan(to_float(row_of(y_bad, r)[5]))) << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
