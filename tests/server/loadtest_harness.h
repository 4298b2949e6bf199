// `outrider loadtest` in the process of its tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "launcher/command_line.h"
#include "testing/temporary_directory.h"
#include "tests/server/scripted_server.h"

namespace outrider {

class Loadtest : public testing::Test {
 protected:
  int run(const ScriptedServer& server, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"loadtest", "--port", std::to_string(server.address().port), "--json",
                      json_path().string(), "--report-every", "0"});
    int exit_code = 0;
    const Action action = parse_command_line(arguments, exit_code);
    EXPECT_TRUE(action);
    testing::internal::CaptureStdout();
    try {
      exit_code = action();
    } catch (const Error&) {
      output_ = testing::internal::GetCapturedStdout();
      throw;
    }
    output_ = testing::internal::GetCapturedStdout();
    return exit_code;
  }
  std::filesystem::path json_path() const { return directory_.path() / "report.json"; }
  std::string html_path() const { return directory_.path() / "report.html"; }
  std::string samples_path() const { return directory_.path() / "samples.jsonl"; }
  std::string html() const {
    std::ifstream file(html_path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  nlohmann::json report() const { return nlohmann::json::parse(std::ifstream(json_path())); }

  TemporaryDirectory directory_;
  std::string output_;
};

}  // namespace outrider
