// Checks for flags that take a number.
#pragma once

#include <CLI/CLI.hpp>

namespace outrider {

// A number within [least, most], which NaN is not. (CLI11's own writes its bounds out: DBL_MAX has
// 309 digits.)
CLI::Validator number_within(double least, double most);

}  // namespace outrider
