#include "model/find_draft.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "core/error.h"

namespace outrider {

std::optional<std::filesystem::path> find_draft(
    const std::filesystem::path& directory, const std::string& what,
    const std::function<bool(const std::filesystem::path& entry)>& is_for) {
  std::optional<std::filesystem::path> found;
  std::error_code unreadable;  // is as good as absent
  for (std::filesystem::directory_iterator entry(directory, unreadable), end;
       !unreadable && entry != end; entry.increment(unreadable)) {
    const std::filesystem::path candidate = entry->path();
    if (!is_for(candidate)) continue;
    if (found) {
      throw Error(directory.string() + ": holds " + found->filename().string() + " and " +
                  candidate.filename().string() + "; expected one " + what);
    }
    found = candidate;
  }
  return found;
}

bool mentions(const std::filesystem::path& path, std::initializer_list<std::string_view> texts) {
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return false;
  std::string bytes(size_t{1} << 20, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return std::all_of(texts.begin(), texts.end(),
                     [&](std::string_view text) { return bytes.find(text) != std::string::npos; });
}

}  // namespace outrider
