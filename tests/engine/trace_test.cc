// Trace files as viewers read them, whole ones and those of processes that died.
#include "engine/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "testing/one_line_error.h"
#include "testing/read_file.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

TEST(Trace, StepsAndRequestsAreSpans) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "trace.json";
  {
    TraceWriter trace(path.string());
    const auto now = TraceWriter::Clock::now();
    trace.phase("target", 7, now, now + milliseconds(3));
    Completion completion;
    completion.completion_tokens = 12;
    completion.timings = {.queue_ms = 1, .prefill_ms = 2, .decode_ms = 4, .total_ms = 8};
    trace.request("evil \"\n\\é id", now + milliseconds(8), completion);
    EXPECT_EQ(trace.num_dropped(), 0);
  }
  const auto events = nlohmann::json::parse(read_file(path));
  std::map<std::string, double> begin, end;
  for (const auto& event : events) {
    if (event["ph"] == "X") {
      EXPECT_EQ(event["name"], "target");
      EXPECT_NEAR(event["dur"].get<double>(), 3000, 0.01);
      EXPECT_EQ(event["args"]["step"], 7);
    }
    if (event["ph"] == "b") begin[event["name"]] = event["ts"];
    if (event["ph"] == "e") end[event["name"]] = event["ts"];
    if (event["ph"] == "b" && event["name"] == "request") {
      EXPECT_EQ(event["args"]["request_id"], "evil ????? id");
      EXPECT_EQ(event["args"]["completion_tokens"], 12);
    }
  }
  ASSERT_EQ(begin.size(), 4u);
  EXPECT_NEAR(end["request"] - begin["request"], 8000, 0.01);
  EXPECT_NEAR(end["queue"] - begin["queue"], 1000, 0.01);
  EXPECT_NEAR(end["prefill"] - begin["prefill"], 2000, 0.01);
  EXPECT_NEAR(end["decode"] - begin["decode"], 4000, 0.01);
  EXPECT_NEAR(begin["queue"] - begin["request"], 0, 0.01);
  EXPECT_NEAR(begin["decode"] - end["prefill"], 0, 0.01);
}

// At any moment the file is an array that lacks nothing but its bracket.
TEST(Trace, IsReadableWhileItIsWritten) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "trace.json";
  TraceWriter trace(path.string());
  const auto now = TraceWriter::Clock::now();
  trace.phase("draft", 1, now, now);
  std::string text;
  while (text.find("draft") == std::string::npos) text = read_file(path);
  EXPECT_EQ(nlohmann::json::parse(text + "]").back()["name"], "draft");
}

TEST(Trace, WhatComesTooFastIsCounted) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "trace.json";
  constexpr int kEvents = 20'000;
  int64_t dropped = 0;
  {
    TraceWriter trace(path.string(), /*max_queued=*/16);
    const auto now = TraceWriter::Clock::now();
    for (int i = 0; i < kEvents; ++i) trace.phase("verify", 0, now, now);
    dropped = trace.num_dropped();
  }
  EXPECT_GT(dropped, 0);
  const auto events = nlohmann::json::parse(read_file(path));
  EXPECT_EQ(static_cast<int64_t>(events.size()), kEvents - dropped + 2);  // two that name tracks
}

TEST(Trace, AFileThatCannotBeWrittenIsAnError) {
  expect_one_line_error({"--trace /no/such/directory/file", "No such file"},
                        [] { TraceWriter trace("/no/such/directory/file"); });
}

}  // namespace
}  // namespace outrider
