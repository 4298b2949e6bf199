// Variables that kernels declare __shared__, which the emulator keeps as thread_local statics.
#pragma once

#include <cstddef>
#include <vector>

namespace emu {

struct SharedVariable;

// Those that a kernel may touch: all but the ones of other functions named …_kernel.
class StaticShared {
 public:
  // kernel: its address.
  static const StaticShared& of(const void* kernel);

  // Fills the calling thread's with poison, as a block finds them.
  void poison() const;

  // What they hold, and what that brings back.
  void save(std::vector<std::byte>& saved) const;
  void restore(const std::vector<std::byte>& saved) const;

 private:
  template <class Act>
  void for_each(const Act& act) const;

  std::vector<const SharedVariable*> variables_;
};

}  // namespace emu
