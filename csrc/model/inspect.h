// What `outrider inspect` prints of a checkpoint.
#pragma once

#include <filesystem>
#include <string>

namespace outrider {

// Lines of text that say what the directory holds (architecture, shapes, parameters, bytes, files,
// hash) and what each of `ranks` ranks would hold of it. Throws Error as loading would, where the
// checkpoint is not whole or cannot be cut into so many ranks.
std::string inspect_checkpoint(const std::filesystem::path& directory, int ranks);

}  // namespace outrider
