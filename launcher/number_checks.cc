// See number_checks.h.
#include "launcher/number_checks.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>

#include <cstdint>
#include <string>

namespace outrider {

CLI::Validator number_within(double least, double most) {
  return {[least, most](const std::string& text) {
            double value = 0;
            const bool within = absl::SimpleAtod(text, &value) && value >= least && value <= most;
            return within ? std::string()
                          : absl::StrFormat("%s is not a number from %g to %g", text, least, most);
          },
          "NUMBER"};
}

CLI::Validator is_seed() {
  return {[](const std::string& text) {
            uint64_t seed = 0;
            return absl::SimpleAtoi(text, &seed)
                       ? std::string()
                       : text + " is not a whole number from 0 to 18446744073709551615";
          },
          "NONNEGATIVE"};
}

}  // namespace outrider
