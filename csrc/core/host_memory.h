// What this host has left of its memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace outrider {

// Bytes that processes like this one can take at most, caches that can be dropped and swap counted
// as free: what Linux says is available, or what the control groups (version 2) that this process
// is in have left, where that is less. Nothing where Linux does not say.
// root: the directory that proc/ and sys/ are looked for in.
std::optional<int64_t> available_memory(const std::filesystem::path& root = "/");

}  // namespace outrider
