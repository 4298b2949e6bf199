// NCCL over the communicators of the host: MPI's where a World was made, and otherwise ranks that
// are threads of one process. Collectives are operations of a stream, and of its graphs.
#include <mpi.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi_communicator.h"
#include "comm/thread_communicator.h"
#include "testing/emu/device_memory.h"
#include "testing/emu/environment.h"
#include "testing/emu/stream.h"

using outrider::Communicator;
using outrider::DType;
using outrider::TensorView;

// Operations that have not run yet outlive ncclCommAbort.
struct ncclComm {
  std::shared_ptr<ncclComm> self;
  int rank = 0, size = 0;
  std::unique_ptr<Communicator> transport;
  bool threads = false;
  std::atomic<ncclResult_t> async_error = ncclSuccess;
  // Held by every collective that was captured, as long as a graph has it.
  std::shared_ptr<void> captured = std::make_shared<char>();
  std::atomic<bool> aborted = false;
};

namespace {

// Groups of threads that are coming about: those that nobody has asked for yet.
struct Groups {
  std::mutex mutex;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> waiting;
};

Groups& groups() {
  static Groups groups;
  return groups;
}

std::unique_ptr<Communicator> join_threads(const std::string& id, int size, int rank) {
  Groups& all = groups();
  const std::lock_guard lock(all.mutex);
  auto& members = all.waiting[id];
  if (members.empty()) members = outrider::make_thread_communicators(size);
  auto mine = std::move(members.at(rank));
  const bool complete = std::all_of(members.begin(), members.end(),
                                    [](const auto& member) { return member == nullptr; });
  if (complete) all.waiting.erase(id);
  return mine;
}

bool under_mpi() {
  int initialized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0;
}

// Host memory of 4 bytes an element, in which bytes travel.
using Words = std::vector<int32_t>;

Words words_of(const void* data, size_t bytes) {
  Words words((bytes + 3) / 4);
  if (bytes > 0) std::memcpy(words.data(), data, bytes);
  return words;
}

// What every rank sends in the collective that OUTRIDER_EMU_NCCL_SPOIL_AT counts to arrives with
// another bit in its last word.
std::atomic<bool> spoils = false;
void count_to_spoiled() {
  static const uint64_t at = emu::environment_number("OUTRIDER_EMU_NCCL_SPOIL_AT", 0);
  static std::atomic<uint64_t> done = 0;
  if (at != 0) spoils = ++done == at;
}
void spoil_where_asked(Words& sent) {
  if (spoils && !sent.empty()) sent.back() ^= 1 << 22;
}

// [size, words]: what each rank gave, equally much on all. NCCL wants a collective to be part of a
// graph on all ranks or on none: each tells the others behind its words.
Words all_gather(ncclComm& comm, const Words& mine, bool in_graph) {
  Words sent = mine;
  spoil_where_asked(sent);
  sent.push_back(in_graph ? 1 : 0);
  Words received(sent.size() * comm.size);
  outrider::Stream stream;
  const auto count = static_cast<int64_t>(sent.size());
  comm.transport->all_gather(TensorView(sent.data(), DType::i32, {count}),
                             TensorView(received.data(), DType::i32, {comm.size, count}), stream);
  Words all;
  all.reserve(mine.size() * comm.size);
  for (int rank = 0; rank < comm.size; ++rank) {
    const auto first = received.begin() + rank * sent.size(), end = first + mine.size();
    if (*end != sent.back()) {
      std::fprintf(stderr,
                   "emulator: a collective is part of a graph on rank %d and not on rank %d\n",
                   in_graph ? comm.rank : rank, in_graph ? rank : comm.rank);
      std::abort();
    }
    all.insert(all.end(), first, end);
  }
  return all;
}

// Where a rank is, as NCCL sees it: another host's GPU is another one.
std::string place_of_rank() {
  const char* const host = std::getenv("NCCL_HOSTID");
  int device = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    return "";
  }
  return (host == nullptr ? "" : host) + std::string("/") +
         std::to_string(properties.uuid.bytes[0]);
}

// Collective. NCCL refuses ranks that are on one GPU ("Duplicate GPU detected").
bool on_a_gpu_each(ncclComm& comm) {
  constexpr size_t kPlaceBytes = 256;
  std::string place = place_of_rank();
  place.resize(kPlaceBytes);
  const Words mine = words_of(place.data(), kPlaceBytes), all = all_gather(comm, mine, false);
  std::set<Words> places;
  for (int rank = 0; rank < comm.size; ++rank) {
    const auto first = all.begin() + rank * mine.size();
    places.emplace(first, first + mine.size());
  }
  return static_cast<int>(places.size()) == comm.size;
}

size_t element_bytes(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 1; }

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

ncclResult_t check_memory(const void* data, size_t bytes) {
  return bytes == 0 || emu::in_device_memory(data, bytes) ? ncclSuccess : ncclInvalidArgument;
}

// The collective that OUTRIDER_EMU_NCCL_FAIL_AT counts to on the rank OUTRIDER_EMU_NCCL_FAIL_RANK
// is never done, as when a link breaks: NCCL finds out by itself, the stream waits.
void fail_where_asked(ncclComm& comm) {
  static const uint64_t at = emu::environment_number("OUTRIDER_EMU_NCCL_FAIL_AT", 0);
  static const uint64_t rank = emu::environment_number("OUTRIDER_EMU_NCCL_FAIL_RANK", 0);
  static std::atomic<uint64_t> done = 0;
  if (at == 0 || static_cast<uint64_t>(comm.rank) != rank || ++done != at) return;
  comm.async_error = ncclRemoteError;
  comm.aborted.wait(false);
  throw outrider::Error("aborted");
}

// The rank OUTRIDER_EMU_NCCL_HANG_RANK joins no group, and the others do not see it.
void hang_where_asked(int rank) {
  constexpr uint64_t kNone = UINT64_MAX;
  while (emu::environment_number("OUTRIDER_EMU_NCCL_HANG_RANK", kNone) ==
         static_cast<uint64_t>(rank)) {
    pause();
  }
}

// NCCL waits for the end of every graph that has a collective of this communicator.
void wait_for_graphs(const ncclComm& comm, const char* call) {
  if (comm.captured.use_count() == 1) return;
  std::fprintf(stderr, "emulator: %s waits for ever for graphs that are still there\n", call);
  std::abort();
}

// body(in_graph) as an operation of the stream, or of the graph that is captured on it; what it
// throws is remembered as an asynchronous error.
template <class Body>
ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, Body body) {
  const std::shared_ptr<void> captured = emu::is_capturing(stream) ? comm->captured : nullptr;
  emu::Operation operation([comm = comm->self, captured, body] {
    try {
      fail_where_asked(*comm);
      count_to_spoiled();
      body(captured != nullptr);
      return std::string();
    } catch (const outrider::Error& error) {
      comm->async_error = ncclRemoteError;
      return std::string("NCCL: ") + error.what();
    }
  });
  operation.is_kernel = true;
  const cudaError_t result = emu::enqueue(stream, std::move(operation));
  return result == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(emu::environment_number("OUTRIDER_EMU_NCCL", NCCL_VERSION_CODE));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled CUDA error";
    case ncclSystemError:
      return "system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "in progress";
  }
  return "unknown";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next = 0;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "%d.%d", getpid(), next++);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  if (size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
  const auto made = std::make_shared<ncclComm>();
  made->rank = rank;
  made->size = size;
  made->threads = !under_mpi();
  made->transport = made->threads ? join_threads(id.internal, size, rank)
                                  : outrider::make_mpi_communicator(/*numa_node=*/0);
  if (made->transport == nullptr || made->transport->size() != size) return ncclInvalidUsage;
  if (!on_a_gpu_each(*made)) return ncclInvalidUsage;
  hang_where_asked(rank);
  made->self = made;
  *comm = made.get();
  return ncclSuccess;
}

// What is enqueued is done first, as cudaFree would.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  emu::run_everything();
  wait_for_graphs(*comm, "ncclCommDestroy");
  comm->self = nullptr;
  return ncclSuccess;
}

// What is enqueued is left: whoever runs it after this is told that the group has failed.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  comm->aborted.notify_all();
  if (comm->threads) outrider::abort_thread_group(*comm->transport);
  wait_for_graphs(*comm, "ncclCommAbort");
  comm->self = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->async_error;
  return ncclSuccess;
}

// With more than two ranks the order of addition is another for each element, which is as good as
// NCCL promises: whoever relies on one is seen.
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || operation != ncclSum) return ncclInvalidArgument;
  for (const void* data : {send, const_cast<const void*>(receive)}) {
    if (const ncclResult_t wrong = check_memory(data, count * 4)) return wrong;
  }
  return enqueue(comm, stream, [=](bool in_graph) {
    const Words words = all_gather(*comm, words_of(send, count * 4), in_graph);
    const auto* const parts = reinterpret_cast<const float*>(words.data());
    auto* const sum = static_cast<float*>(receive);
    for (size_t i = 0; i < count; ++i) {
      const size_t first = i % comm->size;
      sum[i] = parts[first * count + i];
      for (int k = 1; k < comm->size; ++k) sum[i] += parts[(first + k) % comm->size * count + i];
    }
  });
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = send_count * element_bytes(type);
  if (const ncclResult_t wrong = check_memory(send, bytes)) return wrong;
  if (const ncclResult_t wrong = check_memory(receive, comm->size * bytes)) return wrong;
  // In place, a rank's part stands where it is to be; anywhere else it is overwritten too soon.
  const bool in_place = send == static_cast<std::byte*>(receive) + comm->rank * bytes;
  if (!in_place && overlap(send, bytes, receive, comm->size * bytes)) return ncclInvalidUsage;
  return enqueue(comm, stream, [=](bool in_graph) {
    const Words words = all_gather(*comm, words_of(send, bytes), in_graph);
    for (int rank = 0; rank < comm->size; ++rank) {
      std::memcpy(static_cast<std::byte*>(receive) + rank * bytes,
                  words.data() + rank * ((bytes + 3) / 4), bytes);
    }
  });
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * element_bytes(type);
  if (root < 0 || root >= comm->size) return ncclInvalidArgument;
  if (const ncclResult_t wrong = check_memory(receive, bytes)) return wrong;
  if (comm->rank == root) {
    if (const ncclResult_t wrong = check_memory(send, bytes)) return wrong;
  }
  return enqueue(comm, stream, [=](bool) {
    Words words = words_of(comm->rank == root ? send : receive, bytes);
    spoil_where_asked(words);
    outrider::Stream none;
    comm->transport->broadcast(
        TensorView(words.data(), DType::i32, {static_cast<int64_t>(words.size())}), root, none);
    std::memcpy(receive, words.data(), bytes);
  });
}

ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  const size_t bytes = comm->size * count * 4;
  if (const ncclResult_t wrong = check_memory(send, bytes)) return wrong;
  if (const ncclResult_t wrong = check_memory(receive, bytes)) return wrong;
  if (overlap(send, bytes, receive, bytes)) return ncclInvalidUsage;
  return enqueue(comm, stream, [=](bool in_graph) {
    const Words all = all_gather(*comm, words_of(send, bytes), in_graph);  // [from, to, count]
    for (int from = 0; from < comm->size; ++from) {
      std::memcpy(static_cast<std::byte*>(receive) + from * count * 4,
                  all.data() + (from * comm->size + comm->rank) * count, count * 4);
    }
  });
}
