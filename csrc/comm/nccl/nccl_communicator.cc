// Collectives are enqueued and return at once. NCCL moves bytes; with more than two ranks the sums
// are ours, since NCCL's order of addition changes with the size of the message. (a + b is b + a:
// of two ranks its sum is used as it is.)
#include "comm/nccl/nccl_communicator.h"

#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "comm/exchange_cost.h"
#include "comm/nccl/ordered_sum.h"
#include "core/buffer.h"
#include "core/host_name.h"
#include "kernels/cuda/launch.h"

namespace outrider {

using cuda::check_cuda;

namespace {

// comm: may be null; NCCL remembers details for each. expected: what the call needs.
void check_nccl(ncclResult_t result, const char* call, ncclComm_t comm = nullptr,
                const std::string& expected = "") {
  if (result == ncclSuccess) return;
  const char* const detail = ncclGetLastError(comm);
  throw Error(std::string(call) + " failed: " + ncclGetErrorString(result) +
              (detail == nullptr || *detail == '\0' ? "" : std::string(": ") + detail) + expected);
}

int loaded_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  return version;
}

// "2.28.9", as NCCL counts versions since 2.9; before, 2.8.4 was 2804.
std::string version_name(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

cudaStream_t handle(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(int rank, int size, const std::string& id, Numerics numerics)
      : rank_(rank), size_(size), numerics_(numerics) {
    if (size == 1) return;
    ncclUniqueId unique_id;
    CHECK(id.size() == sizeof unique_id.internal);
    std::memcpy(unique_id.internal, id.data(), id.size());
    check_nccl(ncclCommInitRank(&comm_, size, unique_id, rank), "ncclCommInitRank", nullptr,
               "; expected " + std::to_string(size) +
                   " ranks on a GPU each that reach each other, with shared memory (/dev/shm) and "
                   "memory of the GPUs free: NCCL_DEBUG=WARN has NCCL say more");
    // Freed behind the abort: it would wait for what is under way.
    const size_t bytes = 2 * size * kTrialFloats * sizeof(float);
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
    const Buffer memory(data, bytes, [](void* what, size_t) { cudaFree(what); });
    try {
      try_out(static_cast<float*>(data));
    } catch (...) {
      ncclCommAbort(comm_);
      throw;
    }
  }
  // In order all ranks come here; while an exception unwinds the others may never.
  ~NcclCommunicator() override {
    if (comm_ == nullptr) return;
    if (std::uncaught_exceptions() == exceptions_at_start_) {
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool is_near() const override { return false; }

  void reserve_sum(int64_t max_elements) override {
    const auto bytes = static_cast<size_t>(sum_scratch_bytes(size_, max_elements, numerics_));
    if (bytes <= scratch_.bytes()) return;
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    scratch_ = {};
    void* data = nullptr;
    const cudaError_t result = cudaMalloc(&data, bytes);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it is told here
      throw Error("the device has no room for " + std::to_string(bytes) + " bytes in which the " +
                  "parts of " + std::to_string(size_) + " ranks are added");
    }
    check_cuda(result, "cudaMalloc");
    scratch_ = Buffer(data, bytes, [](void* memory, size_t) { cudaFree(memory); });
  }

  void all_reduce_sum(TensorView x, Stream& stream) override {
    CHECK(x.dtype() == DType::f32 && x.contiguous());
    if (size_ == 1 || x.size() == 0) return;
    auto* const data = x.data<float>();
    if (nccl_sums(size_, numerics_)) {
      check_nccl(ncclAllReduce(data, data, x.size(), ncclFloat32, ncclSum, comm_, handle(stream)),
                 "ncclAllReduce", comm_);
    } else if (x.size() <= kGatherMaxFloats) {
      sum_gathered(data, x.size(), handle(stream));
    } else {
      sum_in_blocks(data, x.size(), handle(stream));
    }
  }

  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    CHECK(mine.contiguous() && all.contiguous() && all.bytes() == size_ * mine.bytes());
    if (mine.bytes() == 0) return;
    if (size_ == 1) {
      check_cuda(cudaMemcpyAsync(all.raw(), mine.raw(), mine.bytes(), cudaMemcpyDeviceToDevice,
                                 handle(stream)),
                 "cudaMemcpyAsync");
      return;
    }
    check_nccl(ncclAllGather(mine.raw(), all.raw(), mine.bytes(), ncclUint8, comm_, handle(stream)),
               "ncclAllGather", comm_);
  }

  void broadcast(TensorView x, int root, Stream& stream) override {
    CHECK(x.contiguous() && 0 <= root && root < size_);
    if (size_ == 1 || x.bytes() == 0) return;
    check_nccl(ncclBroadcast(x.raw(), x.raw(), x.bytes(), ncclUint8, root, comm_, handle(stream)),
               "ncclBroadcast", comm_);
  }

  std::string failure() const override {
    if (comm_ == nullptr) return "";
    ncclResult_t result = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess || result == ncclSuccess ||
        result == ncclInProgress) {
      return "";
    }
    return std::string("NCCL: ") + ncclGetErrorString(result);
  }

 private:
  // One of each kind that is used, of a few bytes and of many, which NCCL sends in other ways.
  // Links that lose what is sent may show at the first that uses them, and those that spoil it
  // never: here, where the ranks are waited for as long as joining takes, and not as long as
  // loading.
  void try_out(float* memory) {  // [2, size, kTrialFloats]
    const cudaStream_t stream = nullptr;
    for (const int64_t n : {int64_t{1}, kTrialFloats}) {
      const int64_t count = size_ * n;
      float* const mine = memory;
      float* const all = memory + count;
      const std::vector<float> sent(count, static_cast<float>(rank_ + 1));
      std::vector<float> arrived(count);
      // send(): from `mine`, all of it rank + 1, to `all`; expected(i): its element i.
      const auto check = [&](const char* call, const auto& send, const auto& expected) {
        const size_t bytes = count * sizeof(float);
        check_cuda(cudaMemcpy(mine, sent.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
        check_cuda(cudaMemset(all, 0, bytes), "cudaMemset");
        check_nccl(send(), call, comm_);
        check_cuda(cudaMemcpyAsync(arrived.data(), all, bytes, cudaMemcpyDeviceToHost, stream),
                   "cudaMemcpyAsync");
        check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        for (int64_t i = 0; i < count; ++i) {
          if (arrived[i] == expected(i)) continue;
          throw Error(std::string(call) + " of " + std::to_string(bytes) + " bytes over " +
                      std::to_string(size_) + " ranks brought " + std::to_string(arrived[i]) +
                      " to rank " + std::to_string(rank_) + " in element " + std::to_string(i) +
                      "; expected " + std::to_string(expected(i)) +
                      ": what the GPUs send each other does not arrive as it was");
        }
      };
      const auto by_rank = [&](int64_t i) { return static_cast<float>(i / n + 1); };
      check(
          "ncclAllGather", [&] { return ncclAllGather(mine, all, n, ncclFloat32, comm_, stream); },
          by_rank);
      check(
          "ncclBroadcast",
          [&] { return ncclBroadcast(mine, all, count, ncclFloat32, 0, comm_, stream); },
          [](int64_t) { return 1.0f; });
      if (nccl_sums(size_, numerics_)) {
        check(
            "ncclAllReduce",
            [&] { return ncclAllReduce(mine, all, count, ncclFloat32, ncclSum, comm_, stream); },
            [&](int64_t) { return static_cast<float>(size_ * (size_ + 1) / 2); });
      } else {
        check(
            "ncclAlltoAll", [&] { return ncclAlltoAll(mine, all, n, ncclFloat32, comm_, stream); },
            by_rank);
      }
    }
  }

  void sum_gathered(float* x, int64_t n, cudaStream_t stream) {
    float* const parts = scratch(size_ * n);  // [size, n]
    check_nccl(ncclAllGather(x, parts, n, ncclFloat32, comm_, stream), "ncclAllGather", comm_);
    cuda::ordered_sum(parts, size_, n, x, stream);
  }

  // Block r, the elements from r * block on, is added by rank r; the few behind equal blocks by
  // all.
  void sum_in_blocks(float* x, int64_t n, cudaStream_t stream) {
    const int64_t block = sum_block(size_, n);
    float* const parts = scratch(size_ * block);  // [size, block]
    float* const sum = x + rank_ * block;
    check_nccl(ncclAlltoAll(x, parts, block, ncclFloat32, comm_, stream), "ncclAlltoAll", comm_);
    cuda::ordered_sum(parts, size_, block, sum, stream);
    check_nccl(ncclAllGather(sum, x, block, ncclFloat32, comm_, stream), "ncclAllGather", comm_);
    const int64_t summed = size_ * block;
    if (summed < n) sum_gathered(x + summed, n - summed, stream);
  }

  float* scratch(int64_t elements) const {
    CHECK(elements * sizeof(float) <= scratch_.bytes());
    return static_cast<float*>(scratch_.data());
  }

  static constexpr int64_t kTrialFloats = int64_t{1} << 18;

  int exceptions_at_start_ = std::uncaught_exceptions();
  int rank_, size_;
  Numerics numerics_;
  ncclComm_t comm_ = nullptr;  // null: a group of one
  Buffer scratch_;             // reserve_sum
};

}  // namespace

std::string nccl_version() { return version_name(loaded_version()); }

bool nccl_fits(int built, int loaded) {
  return built / 10000 == loaded / 10000 && loaded / 100 >= built / 100;
}

void check_nccl_library() {
  const int loaded = loaded_version();
  if (nccl_fits(NCCL_VERSION_CODE, loaded)) return;
  throw Error("the NCCL library that was loaded is " + version_name(loaded) + "; expected " +
              version_name(NCCL_VERSION_CODE / 100 * 100) + " or later, below " +
              std::to_string(NCCL_VERSION_CODE / 10000 + 1) + ", as this program was built for");
}

std::string make_nccl_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return std::string(id.internal, sizeof id.internal);
}

std::unique_ptr<Communicator> make_nccl_communicator(int rank, int size, const std::string& id,
                                                     Numerics numerics) {
  return std::make_unique<NcclCommunicator>(rank, size, id, numerics);
}

void let_nccl_share_devices(int local_rank) {
  // Two ranks of one host and one GPU are refused; two hosts are not compared. Between hosts there
  // are sockets alone. An id that all ranks were given would make them one host again.
  const std::string id = "outrider-" + host_name() + "-" + std::to_string(local_rank);
  setenv("NCCL_HOSTID", id.c_str(), 1);
  setenv("NCCL_P2P_DISABLE", "1", 0);
  setenv("NCCL_SHM_DISABLE", "1", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

}  // namespace outrider
