// See logging.h.
#include "server/logging.h"

#include <absl/strings/str_format.h>
#include <spdlog/async.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace outrider {
namespace {

// A logger of this name logs the members of a JSON object, where the format is JSON.
constexpr char kRequestLogger[] = "request";
constexpr size_t kMaxQueuedLines = 4096;
constexpr size_t kMaxIdBytes = 128;  // longer ones are refused; their line has the beginning

// With quotation marks. Bytes that are not UTF-8 become U+FFFD.
std::string to_json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    begin_.format(message, out);
    const std::string_view name(message.logger_name.data(), message.logger_name.size());
    const std::string_view payload(message.payload.data(), message.payload.size());
    if (name == kRequestLogger) {
      append(payload, out);
    } else {
      append("\"message\":", out);
      append(to_json_string(payload), out);
    }
    append("}\n", out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }

 private:
  static void append(std::string_view text, spdlog::memory_buf_t& out) {
    out.append(text.data(), text.data() + text.size());
  }

  spdlog::pattern_formatter begin_{"{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",\"level\":\"%l\",",
                                   spdlog::pattern_time_type::utc, ""};
};

// As it stands where it is a plain word, else as a JSON string: no line of the log can be forged.
std::string readable(const std::string& id) {
  const bool plain =
      !id.empty() && std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
  return plain ? id : to_json_string(id);
}

}  // namespace

std::unique_ptr<spdlog::formatter> make_log_formatter(LogFormat format) {
  if (format == LogFormat::json) return std::make_unique<JsonFormatter>();
  return std::make_unique<spdlog::pattern_formatter>();
}

void set_up_log(LogFormat format, const std::string& level) {
  auto logger = spdlog::stderr_color_mt("outrider");
  logger->set_formatter(make_log_formatter(format));
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(spdlog::level::from_str(level));
}

RequestLog::RequestLog(LogFormat format)
    : format_(format), thread_(std::make_shared<spdlog::details::thread_pool>(kMaxQueuedLines, 1)) {
  const auto& sinks = spdlog::default_logger()->sinks();
  logger_ =
      std::make_shared<spdlog::async_logger>(kRequestLogger, sinks.begin(), sinks.end(), thread_,
                                             spdlog::async_overflow_policy::overrun_oldest);
  logger_->set_level(spdlog::default_logger()->level());
}

RequestLog::~RequestLog() {
  logger_.reset();
  thread_.reset();
}

void RequestLog::end(const RequestEnd& request) {
  if (!logger_->should_log(spdlog::level::info)) return;
  const std::string id = request.request_id.substr(0, kMaxIdBytes);
  const std::string code = absl::StatusCodeToString(request.code);
  logger_->info(
      format_ == LogFormat::json
          ? absl::StrFormat("\"event\":\"request_end\",\"request_id\":%s,\"code\":\"%s\","
                            "\"prompt_tokens\":%d,\"completion_tokens\":%d,\"ms\":%.1f",
                            to_json_string(id), code, request.prompt_tokens,
                            request.completion_tokens, request.ms)
          : absl::StrFormat("request %s: %s, %d prompt tokens, %d completion tokens, %.1f ms",
                            readable(id), code, request.prompt_tokens, request.completion_tokens,
                            request.ms));
}

}  // namespace outrider
