// Where they are is read from the program's own symbols: thread-local statics of functions in
// outrider::cuda. A program without symbols finds there what the block before left, and a block
// that began early what others did.
#include "testing/emu/static_shared.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "testing/emu/include/emu/device.h"

namespace emu {

struct SharedVariable {
  std::string name;       // mangled, as that of its function is within it
  ptrdiff_t from_anchor;  // bytes from threadIdx, which every thread has as well
  size_t bytes;
};

namespace {

template <class T>
std::span<const T> table(const char* file, const Elf64_Shdr& section) {
  return {reinterpret_cast<const T*>(file + section.sh_offset), section.sh_size / sizeof(T)};
}

// Calls act(name, symbol) for each symbol of the program.
template <class Act>
void for_each_symbol(const char* file, const Act& act) {
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(file);
  const std::span sections(reinterpret_cast<const Elf64_Shdr*>(file + header.e_shoff),
                           header.e_shnum);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const char* const names = file + sections[section.sh_link].sh_offset;
    for (const Elf64_Sym& symbol : table<Elf64_Sym>(file, section)) {
      if (symbol.st_shndx != SHN_UNDEF) act(std::string_view(names + symbol.st_name), symbol);
    }
  }
}

// Of the program itself, which comes first.
uintptr_t load_address() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* program, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = program->dlpi_addr;
        return 1;
      },
      &address);
  return address;
}

struct Symbols {
  std::vector<SharedVariable> variables;
  std::map<uintptr_t, std::string> functions;  // mangled names by address

  Symbols() {
    const int descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    struct stat status = {};
    if (fstat(descriptor, &status) == 0) {
      const auto bytes = static_cast<size_t>(status.st_size);
      void* const file = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (file != MAP_FAILED) {
        find_in(static_cast<const char*>(file));
        munmap(file, bytes);
      }
    }
    close(descriptor);
  }

 private:
  void find_in(const char* file) {
    const uintptr_t base = load_address();
    ptrdiff_t anchor = -1;
    for_each_symbol(file, [&](std::string_view name, const Elf64_Sym& symbol) {
      const auto offset = static_cast<ptrdiff_t>(symbol.st_value);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) {
        if (name.starts_with("_ZN8outrider4cuda")) functions[base + symbol.st_value] = name;
      } else if (ELF64_ST_TYPE(symbol.st_info) == STT_TLS) {
        if (name == "threadIdx") anchor = offset;
        if (name.starts_with("_ZZN8outrider4cuda") && symbol.st_size > 0) {
          variables.push_back({std::string(name), offset, symbol.st_size});
        }
      }
    });
    if (anchor < 0) variables.clear();
    for (SharedVariable& variable : variables) variable.from_anchor -= anchor;
  }
};

}  // namespace

const StaticShared& StaticShared::of(const void* kernel) {
  static const Symbols symbols;
  static std::mutex mutex;
  static std::map<const void*, StaticShared> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(kernel);
  if (is_new) {
    const auto function = symbols.functions.find(reinterpret_cast<uintptr_t>(kernel));
    // A variable is named _Z Z FUNCTION E NAME, where its function is named _Z FUNCTION.
    const std::string its =
        function == symbols.functions.end() ? "" : "_ZZ" + function->second.substr(2) + "E";
    for (const SharedVariable& variable : symbols.variables) {
      if (variable.name.starts_with(its) || variable.name.find("_kernel") == std::string::npos) {
        found->second.variables_.push_back(&variable);
      }
    }
  }
  return found->second;
}

// Calls act(data, bytes) for each of the calling thread's.
template <class Act>
void StaticShared::for_each(const Act& act) const {
  auto* const anchor = reinterpret_cast<std::byte*>(&threadIdx);
  for (const SharedVariable* variable : variables_) {
    act(anchor + variable->from_anchor, variable->bytes);
  }
}

void StaticShared::poison() const {
  for_each([](std::byte* data, size_t bytes) { std::memset(data, 0xff, bytes); });
}

void StaticShared::save(std::vector<std::byte>& saved) const {
  saved.clear();
  for_each(
      [&](const std::byte* data, size_t bytes) { saved.insert(saved.end(), data, data + bytes); });
}

void StaticShared::restore(const std::vector<std::byte>& saved) const {
  const std::byte* from = saved.data();
  for_each([&](std::byte* data, size_t bytes) {
    std::memcpy(data, from, bytes);
    from += bytes;
  });
}

}  // namespace emu
