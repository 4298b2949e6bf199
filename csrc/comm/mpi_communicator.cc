// MPI_Allreduce is not used: it changes its order of addition with the size of the message.
#include "comm/mpi_communicator.h"

#include <mpi.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "comm/ordered_sum.h"
#include "comm/shared_memory.h"
#include "comm/shared_memory_sum.h"
#include "core/buffer.h"

namespace outrider {
namespace {

// Up to this many floats a rank, gathering all parts on every rank and adding there is quicker;
// above it, each rank adds a block and the blocks are gathered, which moves 2 (N - 1) / N of the
// message instead of N - 1. Measured with OpenMPI 4.1 over shared memory, rows of 576 floats,
// median µs of gather / blocks / MPI_Allreduce:
//   2 ranks           1 row 1.8 / 2.7 / 1.8   8 rows 7.5 / 8.7 / 8.6   16 rows 11.9 / 10.6 / 10.3
//                     64 rows 36 / 23 / 20    512 rows 335 / 305 / 244
//   3 on two cores    8 rows 42 / 51 / 48     16 rows 61 / 46 / 53     64 rows 212 / 80 / 78
constexpr int64_t kGatherMaxElements = 6144;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator() {
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    for (std::vector<int>* v : {&block_counts_, &block_offsets_, &part_counts_, &part_offsets_}) {
      v->resize(size_);
    }
    if (size_ > 1 && on_one_host()) {
      shared_memory_ = map_shared_memory(*this, SharedMemorySum::bytes(size_));
    }
    if (shared_memory_.data() != nullptr) shared_sum_.emplace(shared_memory_.data(), rank_, size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool is_near() const override { return shared_sum_.has_value(); }

  void all_reduce_sum(TensorView x, Stream&) override {
    CHECK(x.dtype() == DType::f32 && x.contiguous() && x.size() <= INT_MAX);
    if (size_ == 1 || x.size() == 0) return;
    if (shared_sum_ && (size_ == 2 || x.size() <= kGatherMaxElements)) {
      shared_sum_->sum(x.data<float>(), x.size());
    } else if (x.size() <= kGatherMaxElements) {
      sum_gathered(x.data<float>(), static_cast<int>(x.size()));
    } else {
      sum_in_blocks(x.data<float>(), static_cast<int>(x.size()));
    }
  }

  void all_gather(TensorView mine, TensorView all, Stream&) override {
    CHECK(mine.contiguous() && all.contiguous() && mine.bytes() <= INT_MAX);
    CHECK(all.bytes() == size_ * mine.bytes());
    if (mine.bytes() == 0) return;
    const int bytes = static_cast<int>(mine.bytes());
    check_mpi(
        MPI_Allgather(mine.raw(), bytes, MPI_BYTE, all.raw(), bytes, MPI_BYTE, MPI_COMM_WORLD),
        "MPI_Allgather");
  }

  void broadcast(TensorView x, int root, Stream&) override {
    CHECK(x.contiguous() && x.bytes() <= INT_MAX && 0 <= root && root < size_);
    if (x.bytes() == 0) return;
    check_mpi(MPI_Bcast(x.raw(), static_cast<int>(x.bytes()), MPI_BYTE, root, MPI_COMM_WORLD),
              "MPI_Bcast");
  }

  // A copy in shared memory takes the place of every rank's own, at the same addresses.
  bool share(std::span<std::byte> memory) override {
    if (size_ == 1 || !on_one_host() || !on_one_node()) return false;
    Buffer shared = map_shared_memory(*this, memory.size());
    if (shared.data() == nullptr) return false;
    if (rank_ == 0) std::memcpy(shared.data(), memory.data(), memory.size());
    check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    int equal = std::memcmp(shared.data(), memory.data(), memory.size()) == 0 ? 1 : 0;
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &equal, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD),
              "MPI_Allreduce");
    if (equal == 0) throw Error("the ranks hold different bytes of weights that are to be equal");
    CHECK(mprotect(shared.data(), memory.size(), PROT_READ) == 0);
    CHECK(mremap(shared.data(), memory.size(), memory.size(), MREMAP_MAYMOVE | MREMAP_FIXED,
                 memory.data()) == memory.data());
    shared.release();
    // Huge pages, as what it replaces has; where the system has none to give, it is only slower.
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1, which libc does not know yet
    madvise(memory.data(), memory.size(), kCollapse);
    return true;
  }

 private:
  bool on_one_host() const {
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
    int host_size = 0;
    check_mpi(MPI_Comm_size(host, &host_size), "MPI_Comm_size");
    check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
    return host_size == size_;
  }

  // Whether all ranks' threads stand on one NUMA node: memory of another is slower than a copy.
  static bool on_one_node() {
    unsigned node = 0;
    CHECK(getcpu(nullptr, &node) == 0);
    int ends[2] = {static_cast<int>(node), -static_cast<int>(node)};
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, ends, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD),
              "MPI_Allreduce");
    return ends[0] == -ends[1];
  }

  // Every rank receives all parts and adds them.
  void sum_gathered(float* x /* [n] */, int n) {
    float* const parts = scratch(int64_t{n} * size_);  // [size, n]
    check_mpi(MPI_Allgather(x, n, MPI_FLOAT, parts, n, MPI_FLOAT, MPI_COMM_WORLD), "MPI_Allgather");
    ordered_sum(parts, size_, n, x);
  }

  // Every rank receives all parts of its block of x and adds them; then the sums are gathered.
  void sum_in_blocks(float* x /* [n] */, int n) {
    for (int rank = 0; rank < size_; ++rank) {
      const auto begin = static_cast<int>(int64_t{n} * rank / size_);
      const auto end = static_cast<int>(int64_t{n} * (rank + 1) / size_);
      block_counts_[rank] = end - begin;
      block_offsets_[rank] = begin;
    }
    const int mine = block_counts_[rank_];
    for (int rank = 0; rank < size_; ++rank) {
      part_counts_[rank] = mine;
      part_offsets_[rank] = rank * mine;
    }
    float* const parts = scratch(int64_t{mine} * size_);  // [size, mine]
    check_mpi(MPI_Alltoallv(x, block_counts_.data(), block_offsets_.data(), MPI_FLOAT, parts,
                            part_counts_.data(), part_offsets_.data(), MPI_FLOAT, MPI_COMM_WORLD),
              "MPI_Alltoallv");
    ordered_sum(parts, size_, mine, x + block_offsets_[rank_]);
    check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, x, block_counts_.data(),
                             block_offsets_.data(), MPI_FLOAT, MPI_COMM_WORLD),
              "MPI_Allgatherv");
  }

  // Grows where a larger sum than ever before comes, so never once the largest has run.
  float* scratch(int64_t elements) {
    const size_t bytes = elements * sizeof(float);
    if (scratch_.bytes() < bytes) scratch_ = allocate_host(bytes);
    return static_cast<float*>(scratch_.data());
  }

  int rank_ = 0, size_ = 1;
  Buffer shared_memory_;
  std::optional<SharedMemorySum> shared_sum_;  // on one host
  Buffer scratch_;
  std::vector<int> block_counts_, block_offsets_, part_counts_, part_offsets_;  // [size]
};

}  // namespace

void check_mpi(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(std::string(call) + " failed: " + text);
}

std::unique_ptr<Communicator> make_mpi_communicator() {
  return std::make_unique<MpiCommunicator>();
}

}  // namespace outrider
