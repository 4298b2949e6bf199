// Where they are is read from the program's own symbols: thread-local statics of functions in
// outrider::cuda. A program without symbols finds there what the block before left, and a block
// that began early what others did.
#include "testing/emu/static_shared.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "testing/emu/include/emu/device.h"

namespace emu {
namespace {

struct Variable {
  ptrdiff_t from_anchor;  // bytes from threadIdx, which every thread has as well
  size_t bytes;
};

template <class T>
std::span<const T> table(const char* file, const Elf64_Shdr& section) {
  return {reinterpret_cast<const T*>(file + section.sh_offset), section.sh_size / sizeof(T)};
}

std::vector<Variable> find_in(const char* file) {
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(file);
  const std::span sections(reinterpret_cast<const Elf64_Shdr*>(file + header.e_shoff),
                           header.e_shnum);
  std::vector<Variable> found;
  ptrdiff_t anchor = -1;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const char* const names = file + sections[section.sh_link].sh_offset;
    for (const Elf64_Sym& symbol : table<Elf64_Sym>(file, section)) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS || symbol.st_shndx == SHN_UNDEF) continue;
      const std::string_view name = names + symbol.st_name;
      const auto offset = static_cast<ptrdiff_t>(symbol.st_value);
      if (name == "threadIdx") anchor = offset;
      if (name.starts_with("_ZZN8outrider4cuda") && symbol.st_size > 0) {
        found.push_back({offset, symbol.st_size});
      }
    }
  }
  if (anchor < 0) return {};
  for (Variable& variable : found) variable.from_anchor -= anchor;
  return found;
}

std::vector<Variable> find_variables() {
  const int descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  struct stat status = {};
  std::vector<Variable> found;
  if (fstat(descriptor, &status) == 0) {
    const auto bytes = static_cast<size_t>(status.st_size);
    void* const file = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (file != MAP_FAILED) {
      found = find_in(static_cast<const char*>(file));
      munmap(file, bytes);
    }
  }
  close(descriptor);
  return found;
}

// Calls act(data, bytes) for each of the calling thread's.
template <class Act>
void for_each_variable(const Act& act) {
  static const std::vector<Variable> variables = find_variables();
  auto* const anchor = reinterpret_cast<std::byte*>(&threadIdx);
  for (const Variable& variable : variables) act(anchor + variable.from_anchor, variable.bytes);
}

}  // namespace

void poison_static_shared() {
  for_each_variable([](std::byte* data, size_t bytes) { std::memset(data, 0xff, bytes); });
}

std::vector<std::byte> save_static_shared() {
  std::vector<std::byte> saved;
  for_each_variable(
      [&](const std::byte* data, size_t bytes) { saved.insert(saved.end(), data, data + bytes); });
  return saved;
}

void restore_static_shared(const std::vector<std::byte>& saved) {
  const std::byte* from = saved.data();
  for_each_variable([&](std::byte* data, size_t bytes) {
    std::memcpy(data, from, bytes);
    from += bytes;
  });
}

}  // namespace emu
