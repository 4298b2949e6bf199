// Error: what the environment did wrong (a file, a peer, a device). CHECK: what the programmer did.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace outrider {

// Caught in main and in the step loop only. The message is one line that names the file or setting,
// what was expected and what was found.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ranks that must hold the same state do not: whatever they computed is not to be trusted.
class DisagreementError : public Error {
 public:
  using Error::Error;
};

}  // namespace outrider

// Ends the process where a precondition does not hold: a bug, never bad input.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
