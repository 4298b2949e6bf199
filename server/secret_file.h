// Small files that flags name: certificates, keys, tokens.
#pragma once

#include <string>

namespace outrider {

// The whole file. flag: "--tls-key key.pem", what errors begin with. Throws Error where it cannot
// be read or is larger than 1 MiB.
std::string read_small_file(const std::string& flag, const std::string& path);

// Logs a warning where other users of this machine may read the file.
void warn_if_world_readable(const std::string& flag, const std::string& path);

}  // namespace outrider
