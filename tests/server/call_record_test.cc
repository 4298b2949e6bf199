// What a call's chunks add to the metrics.
#include "server/call_record.h"

#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include "engine/metrics.h"

namespace outrider {
namespace {

double value(const EngineMetrics& metrics, const std::string& name) {
  std::istringstream lines(metrics.text());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + " ")) return std::stod(line.substr(name.size()));
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

TEST(CallRecord, TellsTheRhythmOfTheFirstAnswer) {
  using std::chrono::milliseconds;
  EngineMetrics metrics;
  RequestLog log(LogFormat::text);
  ServiceRate service_rate;
  const auto begin = std::chrono::steady_clock::now();
  CallRecord record({metrics, log, service_rate, nullptr}, "id");
  const auto chunk_after = [&](int ms, int index, std::vector<int32_t> tokens) {
    std::this_thread::sleep_for(milliseconds(ms));
    Chunk chunk;
    chunk.index = index;
    chunk.token_ids = std::move(tokens);
    record.chunk(chunk);
  };
  chunk_after(20, 1, {1});  // another answer
  chunk_after(0, 0, {});    // text alone
  chunk_after(20, 0, {2});
  chunk_after(10, 1, {3});
  chunk_after(10, 0, {4, 5});
  chunk_after(30, 0, {6});
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  const std::string first = "outrider_time_to_first_token_seconds";
  const std::string next = "outrider_inter_token_latency_seconds";
  EXPECT_EQ(value(metrics, first + "_count"), 1);
  EXPECT_EQ(value(metrics, next + "_count"), 2);
  const double to_first = value(metrics, first + "_sum"), behind = value(metrics, next + "_sum");
  EXPECT_GE(to_first, 0.040);
  EXPECT_GE(behind, 0.050);
  EXPECT_LE(to_first + behind, all.count());  // each moment counted once
}

// The server hears of a deadline that passes as of any other cancel.
TEST(CallRecord, ACancelBehindTheTimeoutIsADeadline) {
  using std::chrono::nanoseconds;
  EngineMetrics metrics;
  RequestLog log(LogFormat::text);
  ServiceRate service_rate;
  const auto end = [&](nanoseconds timeout, const absl::Status& status) {
    CallRecord({metrics, log, service_rate, nullptr}, "id", timeout).end(status);
  };
  end(nanoseconds(0), absl::CancelledError("cancelled while waiting"));
  end(nanoseconds(0), absl::UnavailableError("rank 1 is lost"));
  end(std::chrono::hours(1), absl::CancelledError("cancelled while waiting"));
  end(nanoseconds::max(), absl::CancelledError("cancelled while waiting"));
  const auto errors = [&](const std::string& code) {
    return value(metrics, "outrider_request_errors_total{code=\"" + code + "\"}");
  };
  EXPECT_EQ(errors("DEADLINE_EXCEEDED"), 1);
  EXPECT_EQ(errors("UNAVAILABLE"), 1);
  EXPECT_EQ(errors("CANCELLED"), 2);
}

}  // namespace
}  // namespace outrider
