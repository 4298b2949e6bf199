// Trace files as viewers read them, whole ones and those of processes that died.
#include "engine/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
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
    trace.step({.step = 7,
                .begin = now,
                .executed = now + milliseconds(1),
                .end = now + milliseconds(9),
                .times = {.draft = 0.001, .target = 0.003, .verify = 0.002, .exchange = 0.001},
                .num_prompt_rows = 5,
                .num_decoding = 2,
                .num_drafted = 8,
                .num_alternatives = 3,
                .num_accepted = 5,
                .num_tokens = 7,
                .num_refed = 1});
    Completion completion;
    completion.completion_tokens = 12;
    completion.timings = {.queue_ms = 1, .prefill_ms = 2, .decode_ms = 4, .total_ms = 8};
    trace.request("evil \"\n\\é id", now + milliseconds(8), absl::StatusCode::kCancelled,
                  completion);
    EXPECT_EQ(trace.num_dropped(), 0);
  }
  const auto events = nlohmann::json::parse(read_file(path));
  std::map<std::string, double> begin, end, parts;
  for (const auto& event : events) {
    if (event["ph"] == "X") {
      EXPECT_EQ(event["args"]["step"], 7);
      parts[event["name"]] = event["dur"];
      if (event["name"] == "step") {
        EXPECT_EQ(event["args"]["prompt_rows"], 5);
        EXPECT_EQ(event["args"]["sequences"], 2);
        EXPECT_EQ(event["args"]["drafted"], 8);
        EXPECT_EQ(event["args"]["alternatives"], 3);
        EXPECT_EQ(event["args"]["accepted"], 5);
        EXPECT_EQ(event["args"]["refed"], 1);
      }
    }
    if (event["ph"] == "b") begin[event["name"]] = event["ts"];
    if (event["ph"] == "e") end[event["name"]] = event["ts"];
    if (event["ph"] == "b" && event["name"] == "request") {
      EXPECT_EQ(event["args"]["request_id"], "evil ????? id");
      EXPECT_EQ(event["args"]["code"], "CANCELLED");
      EXPECT_EQ(event["args"]["completion_tokens"], 12);
    }
  }
  const std::map<std::string, double> expected = {
      {"step", 9000},   {"plan", 1000},     {"draft", 1000}, {"target", 3000},
      {"verify", 2000}, {"exchange", 1000}, {"apply", 1000}};
  ASSERT_EQ(parts.size(), expected.size());
  for (const auto& [name, us] : expected) EXPECT_NEAR(parts[name], us, 0.01) << name;
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
  constexpr uint64_t kSteps = 100;  // more than a file's usual buffer holds
  for (uint64_t step = 1; step <= kSteps; ++step) {
    trace.step({.step = step, .begin = now, .executed = now, .end = now});
  }
  nlohmann::json events;
  do {
    const std::string text = read_file(path) + "]";
    events = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  } while (events.size() < 2 + 7 * kSteps);  // one that is being written may be cut
  EXPECT_EQ(events.back()["name"], "apply");
  EXPECT_EQ(events.back()["args"]["step"], kSteps);
}

TEST(Trace, WhatComesTooFastIsCounted) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "trace.json";
  constexpr int kEvents = 20'000;
  int64_t dropped = 0;
  {
    TraceWriter trace(path.string(), /*max_queued=*/16);
    const auto now = TraceWriter::Clock::now();
    for (int i = 0; i < kEvents; ++i) trace.request("", now, absl::StatusCode::kOk, {});
    dropped = trace.num_dropped();
  }
  EXPECT_GT(dropped, 0);
  const auto events = nlohmann::json::parse(read_file(path));
  // A begin and an end each; two name the tracks.
  EXPECT_EQ(static_cast<int64_t>(events.size()), 2 * (kEvents - dropped) + 2);
}

TEST(Trace, WhatFormerProcessesWroteIsKept) {
  TemporaryDirectory directory;
  const auto path = (directory.path() / "trace.json").string();
  for (const char* request : {"first", "", "second", "third"}) {  // the second came to nothing
    TraceWriter trace(path);
    if (*request == 0) continue;
    trace.request(request, TraceWriter::Clock::now(), absl::StatusCode::kOk, {});
  }
  for (const auto& [file, request] :
       {std::pair(path + ".1", "first"), {path + ".2", "second"}, {path, "third"}}) {
    EXPECT_EQ(nlohmann::json::parse(read_file(file))[2]["args"]["request_id"], request) << file;
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".3"));
}

// As by a second server with the same flags, which finds the port in use a moment later.
TEST(Trace, AFileThatAnotherWriterHasIsLeftAlone) {
  TemporaryDirectory directory;
  const auto path = (directory.path() / "trace.json").string();
  const auto refuses_another = [&] {
    expect_one_line_error({"--trace " + path, "another process writes it"},
                          [&] { TraceWriter second(path); });
  };
  {
    TraceWriter trace(path);  // where there was no file
    refuses_another();
  }
  {
    TraceWriter trace(path);  // where there was one without events
    refuses_another();
    trace.request("first", TraceWriter::Clock::now(), absl::StatusCode::kOk, {});
  }
  TraceWriter trace(path);  // where one was kept
  refuses_another();
  EXPECT_EQ(nlohmann::json::parse(read_file(path + ".1"))[2]["args"]["request_id"], "first");
  EXPECT_FALSE(std::filesystem::exists(path + ".2"));
}

TEST(Trace, AFileThatCannotBeWrittenIsAnError) {
  expect_one_line_error({"--trace /no/such/directory/file", "No such file"},
                        [] { TraceWriter trace("/no/such/directory/file"); });
}

}  // namespace
}  // namespace outrider
