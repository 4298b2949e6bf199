// What one connection of the HTTP port may take.
#pragma once

#include <chrono>
#include <cstddef>

namespace outrider {

struct HttpLimits {
  std::chrono::milliseconds first_byte{500};  // from its turn to the first byte of the request
  std::chrono::milliseconds duration{5'000};  // from its turn to the last byte of the answer
  size_t max_request_bytes = 16 << 10;        // request line, headers and body together
};

}  // namespace outrider
