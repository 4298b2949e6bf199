// Communicator: collectives among the ranks of one tensor-parallel group.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/stream.h"
#include "core/tensor.h"

namespace outrider {

// Every rank makes the same calls in the same order with the same shapes. Sums are added in rank
// order, in fp32, starting from rank 0's values: the bits of an element do not depend on message
// size, transport or timing (denormals follow the caller's floating-point environment, which is
// equal on all ranks). A call that fails throws Error, and the group is of no further use: errors
// end the job, nothing here retries. Views are contiguous; calls with no elements do nothing.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether a collective of some kilobytes takes a few microseconds: then even small products are
  // quicker where each rank reads a part of the weights. The same on every rank.
  virtual bool is_near() const = 0;

  // On every rank, before the first step: no sum will have more elements. The largest count of all
  // calls stands; a larger sum is a bug where scratch memory has to be taken beforehand. Throws
  // Error where there is none left. It may move: what was recorded before is to be forgotten.
  virtual void reserve_sum(int64_t /*max_elements*/) {}
  // In place; x: f32 [rows, hidden]. All ranks end with equal bits.
  virtual void all_reduce_sum(TensorView x, Stream& stream) = 0;
  // mine: n bytes on every rank, of any dtype; all: [size, n], in rank order, apart from `mine`.
  virtual void all_gather(TensorView mine, TensorView all, Stream& stream) = 0;
  // x: the same number of bytes on every rank; all end with root's.
  virtual void broadcast(TensorView x, int root, Stream& stream) = 0;

  // memory: the host's, whole pages, aligned to 2 MiB; equal bytes on every rank, which nobody
  // writes from now on. Ranks that are processes of one host and NUMA node keep one copy between
  // them from then on, where there is room for it: a rank finds in a shared cache what another has
  // just read. Returns whether this rank has such company. Throws Error on all of a node's ranks
  // where their bytes differ; the others then find these lost.
  virtual bool share(std::span<std::byte> /*memory*/) { return false; }

  // Why collectives that were enqueued will never be done, as far as the transport has found out
  // by itself; empty while all is well. Thread-safe.
  virtual std::string failure() const { return ""; }
};

}  // namespace outrider
