// See number_checks.h.
#include "launcher/number_checks.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>

#include <CLI/CLI.hpp>
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

}  // namespace outrider
