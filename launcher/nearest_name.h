// What somebody probably meant to type.
#pragma once

#include <string>
#include <vector>

namespace outrider {

// The candidate with the fewest edits (insert, delete, replace: Levenshtein 1966) to `name`, the
// first of equals; empty where it takes more than a third of the name's length.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

// "; did you mean NAME?" for the end of a message, with the nearest name; empty where there is
// none.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace outrider
