#include "core/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace outrider {

namespace {

constexpr int64_t kKiB = 1024;

// That the file holds alone; nothing where it says max.
std::optional<int64_t> number_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  int64_t number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

// Behind the name that a line of the file begins with.
std::optional<int64_t> number_in(const std::filesystem::path& file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return std::nullopt;
}

// Of this process, from the root of the hierarchy.
std::filesystem::path control_group(const std::filesystem::path& root) {
  constexpr std::string_view kVersion2 = "0::";
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(kVersion2)) return line.substr(kVersion2.size());
  }
  return {};
}

// Of a control group, but for swap; nothing where it has no limit.
std::optional<int64_t> room_in(const std::filesystem::path& group) {
  const auto limit = number_in(group / "memory.max"), taken = number_in(group / "memory.current");
  if (!limit || !taken) return std::nullopt;
  int64_t room = *limit - *taken;
  for (const char* dropped : {"active_file", "inactive_file", "slab_reclaimable"}) {
    room += number_in(group / "memory.stat", dropped).value_or(0);
  }
  return room;
}

// That a control group leaves of so much.
int64_t swap_in(const std::filesystem::path& group, int64_t swap) {
  const auto limit = number_in(group / "memory.swap.max");
  if (!limit) return swap;
  const int64_t taken = number_in(group / "memory.swap.current").value_or(0);
  return std::clamp<int64_t>(*limit - taken, 0, swap);
}

}  // namespace

std::optional<int64_t> available_memory(const std::filesystem::path& root) {
  const std::filesystem::path meminfo = root / "proc/meminfo";
  const auto available = number_in(meminfo, "MemAvailable:");
  if (!available) return std::nullopt;
  int64_t memory = kKiB * *available;
  int64_t swap = kKiB * number_in(meminfo, "SwapFree:").value_or(0);
  std::filesystem::path group = root / "sys/fs/cgroup";
  const auto count = [&] {
    memory = std::min(memory, room_in(group).value_or(memory));
    swap = swap_in(group, swap);
  };
  count();  // of a container that sees no more of the hierarchy than its own group
  for (const std::filesystem::path& name : control_group(root).relative_path()) {
    group /= name;
    count();
  }
  return std::max<int64_t>(memory + swap, 0);
}

}  // namespace outrider
