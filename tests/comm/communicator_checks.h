// What every Communicator must do, whatever carries it. Called on all ranks of a group. Tensors are
// Arrays, in memory that the communicator reaches.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "core/philox.h"

namespace outrider::testing {

// Of the host, where operations are done when they return.
template <class T>
class HostArray {
 public:
  explicit HostArray(const std::vector<T>& values) : values_(values) {}
  T* data() { return values_.data(); }
  const std::vector<T>& values() const { return values_; }

 private:
  std::vector<T> values_;
};

// Rank `rank`'s addend for one element: either sign, magnitudes over 2^±20, so that most orders of
// addition round differently.
inline float addend(int rank, int64_t row, int64_t column) {
  const auto random = philox4x32(
      {static_cast<uint32_t>(rank), static_cast<uint32_t>(row), static_cast<uint32_t>(column), 0},
      {1, 2});
  const float mantissa = static_cast<float>(static_cast<int32_t>(random[0])) * 0x1p-31f;
  return std::ldexp(mantissa, static_cast<int>(random[1] % 41) - 20);
}

inline float sum_in_rank_order(int ranks, int64_t row, int64_t column) {
  float sum = addend(0, row, column);
  for (int rank = 1; rank < ranks; ++rank) sum += addend(rank, row, column);
  return sum;
}

// Rows first_row … of an endless matrix, summed; returns how many elements have the wrong bits.
template <template <class> class Array>
int64_t wrong_bits(Communicator& comm, int64_t first_row, int64_t rows, int64_t hidden) {
  std::vector<float> mine(rows * hidden);
  for (int64_t i = 0; i < rows * hidden; ++i) {
    mine[i] = addend(comm.rank(), first_row + i / hidden, i % hidden);
  }
  Stream stream;
  Array<float> sum(mine);
  comm.all_reduce_sum(TensorView(sum.data(), DType::f32, {rows, hidden}), stream);
  const std::vector<float> x = sum.values();
  int64_t wrong = 0;
  for (int64_t i = 0; i < rows * hidden; ++i) {
    const float expected = sum_in_rank_order(comm.size(), first_row + i / hidden, i % hidden);
    wrong += std::bit_cast<uint32_t>(x[i]) != std::bit_cast<uint32_t>(expected);
  }
  return wrong;
}

// Sums of many shapes, on both sides of every threshold, equal a plain loop in rank order bit for
// bit; so a row's bits are the same alone and among others.
template <template <class> class Array = HostArray>
void check_sums(Communicator& comm) {
  comm.reserve_sum(600 * 576);
  const struct {
    int64_t rows, hidden;
  } kShapes[] = {{1, 576}, {8, 576},  {10, 576}, {11, 576}, {600, 576}, {0, 576},  {1, 1},
                 {3, 17},  {1, 6143}, {1, 6144}, {1, 6145}, {127, 131}, {1, 7001}, {64, 4096}};
  for (const auto& [rows, hidden] : kShapes) {
    EXPECT_EQ(wrong_bits<Array>(comm, 0, rows, hidden), 0) << rows << " x " << hidden;
  }
  // Rows of the 600 above, alone.
  for (const int64_t row : {0, 5, 299, 599}) {
    EXPECT_EQ(wrong_bits<Array>(comm, row, 1, 576), 0) << "row " << row;
  }
}

// 1e8 + 1 - 1e8 and the like: the sum is the one of rank order and of no other.
template <template <class> class Array = HostArray>
void check_sum_order(Communicator& comm) {
  comm.reserve_sum(40000);
  const std::vector<float> addends = {1e8f, 1.0f, -1e8f, 3.0f, 0x1p-24f, -3.0f};
  for (const int64_t n : {1, 40000}) {
    Array<float> x(std::vector<float>(n, addends[comm.rank() % addends.size()]));
    Stream stream;
    comm.all_reduce_sum(TensorView(x.data(), DType::f32, {1, n}), stream);
    float expected = addends[0];
    for (int rank = 1; rank < comm.size(); ++rank) expected += addends[rank % addends.size()];
    EXPECT_EQ(x.values(), std::vector<float>(n, expected));
  }
  // -0 survives: nothing begins at +0.
  Array<float> zero(std::vector<float>{-0.0f});
  Stream stream;
  comm.all_reduce_sum(TensorView(zero.data(), DType::f32, {1, 1}), stream);
  EXPECT_TRUE(std::signbit(zero.values()[0]));
}

template <template <class> class Array = HostArray>
void check_all_gather(Communicator& comm) {
  Stream stream;
  for (const int64_t n : {0, 1, 7, 4096, 100001}) {
    std::vector<bf16> values(n);
    for (int64_t i = 0; i < n; ++i) values[i].bits = static_cast<uint16_t>(i * 3 + comm.rank());
    Array<bf16> mine(values), all(std::vector<bf16>(n * comm.size()));
    comm.all_gather(TensorView(mine.data(), DType::bf16, {n}),
                    TensorView(all.data(), DType::bf16, {comm.size(), n}), stream);
    values = all.values();
    int64_t wrong = 0;
    for (int64_t i = 0; i < n * comm.size(); ++i) {
      wrong += values[i].bits != static_cast<uint16_t>(i % n * 3 + i / n);
    }
    EXPECT_EQ(wrong, 0) << n;
  }
}

template <template <class> class Array = HostArray>
void check_broadcast(Communicator& comm) {
  Stream stream;
  for (int root = 0; root < comm.size(); ++root) {
    for (const int64_t n : {0, 1, 100001}) {
      Array<int32_t> x(std::vector<int32_t>(n, comm.rank() + 10));
      comm.broadcast(TensorView(x.data(), DType::i32, {n}), root, stream);
      EXPECT_EQ(x.values(), std::vector<int32_t>(n, root + 10));
    }
  }
}

}  // namespace outrider::testing
