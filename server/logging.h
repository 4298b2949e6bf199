// The log on stderr, as text or as a JSON object a line.
#pragma once

#include <absl/status/status.h>
#include <spdlog/formatter.h>
#include <spdlog/logger.h>

#include <cstdint>
#include <memory>
#include <string>

namespace spdlog::details {
class thread_pool;
}

namespace outrider {

enum class LogFormat { text, json };

// Sets the default logger. level: as spdlog names them.
void set_up_log(LogFormat format, const std::string& level);

// Of the lines of a format. JSON objects have time (UTC), level and message, or the fields of a
// RequestLog's line instead of the message.
std::unique_ptr<spdlog::formatter> make_log_formatter(LogFormat format);

// What is said of a request when it is over. Never its text, nor the answer's.
struct RequestEnd {
  std::string request_id;
  absl::StatusCode code = absl::StatusCode::kOk;
  int64_t prompt_tokens = 0;  // 0 where no answer came to its end
  int64_t completion_tokens = 0;
  double ms = 0;  // since it was received
};

// A line at level info for each request that ends. The lines are written by a thread of their own:
// whoever logs never waits for the terminal or the disk. Where they come too fast, the oldest are
// dropped.
class RequestLog {
 public:
  // To the default logger's sinks, at its level.
  explicit RequestLog(LogFormat format);
  // Writes what is left.
  ~RequestLog();

  void end(const RequestEnd& request);

 private:
  const LogFormat format_;
  std::shared_ptr<spdlog::details::thread_pool> thread_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace outrider
