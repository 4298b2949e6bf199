// Bad input must end in one line that says what is wrong.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace outrider {

// Runs `body` and expects an Error of one short line that holds all of `parts`.
template <typename Body>
void expect_one_line_error(const std::vector<std::string>& parts, Body body) {
  try {
    body();
    ADD_FAILURE() << "no Error was thrown; expected one with \"" << parts.back() << "\"";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u) << message;
  }
}

}  // namespace outrider
