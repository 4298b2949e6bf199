// Looks through a directory for the one draft that was made for a model.
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

// Of the entries of `directory` the one that `is_for` takes; nullopt where there is none, or no
// `directory`. what: is looked for, in the Error that is thrown where there are two. What `is_for`
// throws is thrown.
std::optional<std::filesystem::path> find_draft(
    const std::filesystem::path& directory, const std::string& what,
    const std::function<bool(const std::filesystem::path& entry)>& is_for);

// Whether the first MiB of a file has all of these in it: a file that cannot be parsed may name the
// model that it is for, too. One that cannot be read has nothing.
bool mentions(const std::filesystem::path& path, std::initializer_list<std::string_view> texts);

}  // namespace outrider
