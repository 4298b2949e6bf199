#include "testing/emu/environment.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace emu {

uint64_t environment_number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  std::string in_file;
  if (*text == '@') {
    std::ifstream(text + 1) >> in_file;
    text = in_file.c_str();
  }
  char* end = nullptr;
  errno = 0;
  const uint64_t number = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0) {
    std::fprintf(stderr, "emulator: %s is \"%s\"; expected a number\n", name, text);
    std::abort();
  }
  return number;
}

}  // namespace emu
