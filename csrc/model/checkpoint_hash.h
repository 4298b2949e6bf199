// The digest of a checkpoint: ranks compare it at start-up, and it is part of the fingerprint.
#pragma once

#include <filesystem>
#include <string>

namespace outrider {

// XXH3 of the contents of the checkpoint's files that decide its numerics (config.json and
// safetensors), as 16 hex digits; the same for equal files wherever they lie. Throws Error naming
// the file that cannot be read.
std::string checkpoint_hash(const std::filesystem::path& directory);

// The same of the files that decide what its tokens mean, and which of them end an answer:
// tokenizer.json and generation_config.json, each where it is there.
std::string tokens_hash(const std::filesystem::path& directory);

// The same of one file.
std::string file_hash(const std::filesystem::path& path);

}  // namespace outrider
