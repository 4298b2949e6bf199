// MPI_Allreduce is not used: it changes its order of addition with the size of the message.
#include "comm/mpi_communicator.h"

#include <mpi.h>
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
  // Takes `comm`, unless that is MPI_COMM_WORLD. numa_node: this rank's.
  MpiCommunicator(MPI_Comm comm, int numa_node) : comm_(comm), numa_node_(numa_node) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    for (std::vector<int>* v : {&block_counts_, &block_offsets_, &part_counts_, &part_offsets_}) {
      v->resize(size_);
    }
  }
  // OpenMPI's MPI_Comm_free waits for nobody, so it may stand where an exception unwinds.
  ~MpiCommunicator() override {
    if (comm_ != MPI_COMM_WORLD) MPI_Comm_free(&comm_);
  }

  // Collective; before the first sum.
  void add_in_shared_memory_if_on_one_host() {
    if (size_ == 1 || of_host().size_ < size_) return;
    shared_memory_ = map_shared_memory(*this, SharedMemorySum::bytes(size_));
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
    check_mpi(MPI_Allgather(mine.raw(), bytes, MPI_BYTE, all.raw(), bytes, MPI_BYTE, comm_),
              "MPI_Allgather");
  }

  void broadcast(TensorView x, int root, Stream&) override {
    CHECK(x.contiguous() && x.bytes() <= INT_MAX && 0 <= root && root < size_);
    if (x.bytes() == 0) return;
    check_mpi(MPI_Bcast(x.raw(), static_cast<int>(x.bytes()), MPI_BYTE, root, comm_), "MPI_Bcast");
  }

  // Each NUMA node's ranks by themselves: memory of another node is slower than a copy.
  bool share(std::span<std::byte> memory) override {
    MpiCommunicator near = of_numa_node();
    return near.size_ > 1 && near.keep_one_copy(memory);
  }

 private:
  // Collective, as the next.
  MpiCommunicator of_host() const {
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
    return {host, numa_node_};
  }

  MpiCommunicator of_numa_node() const {
    const MpiCommunicator host = of_host();
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(host.comm_, numa_node_, 0, &node), "MPI_Comm_split");
    return {node, numa_node_};
  }

  // A copy in shared memory takes the place of every rank's own, at the same addresses.
  bool keep_one_copy(std::span<std::byte> memory) {
    Buffer shared = map_shared_memory(*this, memory.size());
    if (shared.data() == nullptr) return false;
    if (rank_ == 0) std::memcpy(shared.data(), memory.data(), memory.size());
    check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
    int equal = std::memcmp(shared.data(), memory.data(), memory.size()) == 0 ? 1 : 0;
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &equal, 1, MPI_INT, MPI_MIN, comm_), "MPI_Allreduce");
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

  // Every rank receives all parts and adds them.
  void sum_gathered(float* x /* [n] */, int n) {
    float* const parts = scratch(int64_t{n} * size_);  // [size, n]
    check_mpi(MPI_Allgather(x, n, MPI_FLOAT, parts, n, MPI_FLOAT, comm_), "MPI_Allgather");
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
                            part_counts_.data(), part_offsets_.data(), MPI_FLOAT, comm_),
              "MPI_Alltoallv");
    ordered_sum(parts, size_, mine, x + block_offsets_[rank_]);
    check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, x, block_counts_.data(),
                             block_offsets_.data(), MPI_FLOAT, comm_),
              "MPI_Allgatherv");
  }

  // Grows where a larger sum than ever before comes, so never once the largest has run.
  float* scratch(int64_t elements) {
    const size_t bytes = elements * sizeof(float);
    if (scratch_.bytes() < bytes) scratch_ = allocate_host(bytes);
    return static_cast<float*>(scratch_.data());
  }

  MPI_Comm comm_;
  int numa_node_;
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

std::unique_ptr<Communicator> make_mpi_communicator(int numa_node) {
  auto communicator = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, numa_node);
  communicator->add_in_shared_memory_if_on_one_host();
  return communicator;
}

}  // namespace outrider
