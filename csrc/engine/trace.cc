// See trace.h. The format: "Trace Event Format", JSON Array Format; steps are complete events ("X")
// of one thread, requests overlap and are async ones ("b", "e").
#include "engine/trace.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/socket.h"
#include "core/error.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kWriteInterval{200};

int64_t ns_of_ms(double ms) { return static_cast<int64_t>(ms * 1e6); }

// Microseconds, the unit of the format.
double us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// What names the tracks. Each further event brings the comma before it.
constexpr std::string_view kHead =
    "[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"outrider\"}},\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":\"steps\"}}";
constexpr std::string_view kTail = "\n]\n";

// Moves what an earlier process has left there to PATH.1, PATH.2, …: where a job is started again,
// the trace of the one that died. One without events is not worth it. Returns whether it was moved.
bool keep_former(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) ||
      std::filesystem::file_size(path, error) <= kHead.size() + kTail.size()) {
    return false;
  }
  std::filesystem::path kept;
  int number = 0;
  do {
    kept = path.string() + "." + std::to_string(++number);
  } while (std::filesystem::exists(kept, error));
  std::filesystem::rename(path, kept, error);
  if (error) throw Error("--trace " + path.string() + ": cannot be kept: " + error.message());
  spdlog::info("--trace {}: what was there is {} now", path.string(), kept.string());
  return true;
}

// An empty file that is this process's as long as it is open, where the file system has locks.
std::FILE* open_trace(const std::string& path) {
  while (true) {
    const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!file.valid()) return nullptr;
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error) &&
        flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw Error("--trace " + path + ": another process writes it; expected a file of its own");
    }
    if (keep_former(path)) continue;
    if (ftruncate(file.get(), 0) != 0 && errno != EINVAL) return nullptr;  // a pipe has no length
    return fdopen(fcntl(file.get(), F_DUPFD_CLOEXEC, 0), "w");
  }
}

}  // namespace

TraceWriter::TraceWriter(const std::string& path, size_t max_queued)
    : path_(path), max_queued_(max_queued), file_(open_trace(path)) {
  if (file_ == nullptr) throw Error("--trace " + path + ": " + std::strerror(errno));
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);  // what is written at once is there at once
  queue_.reserve(max_queued);
  writing_.reserve(max_queued);
  std::fputs(kHead.data(), file_.get());
  thread_ = std::thread([this] { run(); });
}

TraceWriter::~TraceWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (!failed_) std::fputs(kTail.data(), file_.get());
  if (num_dropped_ > 0) {
    spdlog::warn("--trace {}: {} events came too fast to be written and are missing", path_,
                 num_dropped_);
  }
}

int64_t TraceWriter::since_start(Clock::time_point time) const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time - start_).count();
}

void TraceWriter::step(const StepRecord& record) {
  std::array<Event, 7> events{};
  auto next = events.begin();
  const auto add = [&](const char* name, Clock::time_point begin, Clock::time_point end) {
    next->name = name;
    next->step = record.step;
    next->begin_ns = since_start(begin);
    next->end_ns = since_start(end);
    ++next;
  };
  add("step", record.begin, record.end);
  Event& whole = events.front();
  whole.whole = true;
  whole.prompt_rows = record.num_prompt_rows;
  whole.sequences = record.num_decoding;
  whole.drafted = record.num_drafted;
  whole.alternatives = record.num_alternatives;
  whole.accepted = record.num_accepted;
  whole.refed = record.num_refed;
  add("plan", record.begin, record.executed);
  auto from = record.executed;
  const StepPhases& times = record.times;
  for (const auto& [name, seconds] :
       {std::pair("draft", times.draft), std::pair("target", times.target),
        std::pair("verify", times.verify), std::pair("exchange", times.exchange)}) {
    const auto to =
        from + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    add(name, from, to);
    from = to;
  }
  add("apply", from, record.end);
  push(events);
}

void TraceWriter::request(std::string_view request_id, Clock::time_point end, absl::StatusCode code,
                          const Completion& completion) {
  Event event{};
  event.code = code;
  event.end_ns = since_start(end);
  event.begin_ns = event.end_ns - ns_of_ms(completion.timings.total_ms);
  event.queue_ms = completion.timings.queue_ms;
  event.prefill_ms = completion.timings.prefill_ms;
  event.decode_ms = completion.timings.decode_ms;
  event.completion_tokens = completion.completion_tokens;
  // Perfetto knows no \u escapes, so what would need one is replaced.
  const size_t length = std::min(request_id.size(), event.request_id.size() - 1);
  std::transform(request_id.begin(), request_id.begin() + length, event.request_id.begin(),
                 [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\' ? '?' : c; });
  push({&event, 1});
}

void TraceWriter::push(std::span<const Event> events) {
  const std::lock_guard lock(mutex_);
  if (queue_.size() + events.size() > max_queued_) {
    num_dropped_ += static_cast<int64_t>(events.size());
    return;
  }
  queue_.insert(queue_.end(), events.begin(), events.end());
  if (queue_.size() >= max_queued_ / 2) wake_.notify_one();
}

int64_t TraceWriter::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void TraceWriter::run() {
  bool stopping = false;
  while (!stopping) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kWriteInterval,
                     [this] { return stopping_ || queue_.size() >= max_queued_ / 2; });
      stopping = stopping_;
      queue_.swap(writing_);
    }
    if (!failed_) {
      for (const Event& event : writing_) write(event);
      failed_ = std::fwrite(text_.data(), 1, text_.size(), file_.get()) != text_.size();
      text_.clear();
      if (failed_) spdlog::warn("--trace {}: {}; it ends here", path_, std::strerror(errno));
    }
    writing_.clear();
  }
}

void TraceWriter::write(const Event& event) {
  if (event.name != nullptr) return write_step(event);
  ++num_requests_;
  const std::string arguments = absl::StrFormat(
      ",\"args\":{\"request_id\":\"%s\",\"code\":\"%s\",\"completion_tokens\":%d}",
      event.request_id.data(), absl::StatusCodeToString(event.code), event.completion_tokens);
  const int64_t queue_end = event.begin_ns + ns_of_ms(event.queue_ms);
  const int64_t prefill_end = queue_end + ns_of_ms(event.prefill_ms);
  write_span("request", event.begin_ns, event.end_ns, arguments);
  if (event.queue_ms + event.prefill_ms + event.decode_ms == 0) return;
  write_span("queue", event.begin_ns, queue_end, "");
  write_span("prefill", queue_end, prefill_end, "");
  write_span("decode", prefill_end, prefill_end + ns_of_ms(event.decode_ms), "");
}

void TraceWriter::write_step(const Event& event) {
  absl::StrAppendFormat(&text_,
                        ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"cat\":\"step\",\"name\":\"%s\","
                        "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"step\":%d",
                        event.name, us(event.begin_ns), us(event.end_ns - event.begin_ns),
                        event.step);
  if (event.whole) {
    absl::StrAppendFormat(&text_,
                          ",\"prompt_rows\":%d,\"sequences\":%d,\"drafted\":%d,\"alternatives\":%d,"
                          "\"accepted\":%d,\"refed\":%d",
                          event.prompt_rows, event.sequences, event.drafted, event.alternatives,
                          event.accepted, event.refed);
  }
  text_ += "}}";
}

void TraceWriter::write_span(const char* name, int64_t begin_ns, int64_t end_ns,
                             const std::string& arguments) {
  for (const auto& [phase, ns] : {std::pair("b", begin_ns), std::pair("e", end_ns)}) {
    absl::StrAppendFormat(&text_,
                          ",\n{\"ph\":\"%s\",\"pid\":0,\"tid\":0,\"cat\":\"request\",\"id\":%d,"
                          "\"name\":\"%s\",\"ts\":%.3f%s}",
                          phase, num_requests_, name, us(ns), phase[0] == 'b' ? arguments : "");
  }
}

}  // namespace outrider
