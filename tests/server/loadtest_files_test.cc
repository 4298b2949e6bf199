// The files of a load test's report: each takes its place whole, or not at all.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/error.h"
#include "launcher/loadtest/output_file.h"
#include "testing/one_line_error.h"
#include "tests/server/loadtest_harness.h"
#include "tests/server/scripted_server.h"

namespace outrider {
namespace {

TEST_F(Loadtest, AFormerReportStaysUntilThereIsANewOne) {
  directory_.write("report.json", "{\"former\": true}");
  ScriptedServer server;
  expect_one_line_error({"--lookahead adaptive"}, [&] {
    run(server, {"--compare", "K=0,adaptive", "--concurrency", "1", "--requests", "1", "--html",
                 html_path()});
  });
  EXPECT_EQ(report()["former"], true);
  directory_.write("page.html", "former");
  std::filesystem::create_symlink(directory_.path() / "page.html", html_path());
  EXPECT_EQ(run(server, {"--concurrency", "1", "--requests", "4", "--samples", "/dev/null"}), 0);
  EXPECT_EQ(report()["requests"], 4);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(run(server, {"--concurrency", "1", "--requests", "4", "--html", html_path()}), 0);
  EXPECT_TRUE(std::filesystem::is_symlink(html_path()));
  EXPECT_EQ(html().rfind("<!DOCTYPE html>", 0), 0u);
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    files.insert(entry.path().filename());
  }
  EXPECT_EQ(files, (std::set<std::string>{"page.html", "report.html", "report.json"}));
}

TEST_F(Loadtest, ALinkLeadsToWhatIsNotThereYet) {
  std::filesystem::create_directory(directory_.path() / "reports");
  std::filesystem::create_symlink("reports/new.html", html_path());
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--concurrency", "1", "--requests", "4", "--html", html_path()}), 0);
  EXPECT_TRUE(std::filesystem::is_symlink(html_path()));
  EXPECT_TRUE(std::filesystem::is_regular_file(directory_.path() / "reports" / "new.html"));
  EXPECT_EQ(html().rfind("<!DOCTYPE html>", 0), 0u);
  std::filesystem::create_symlink("round", directory_.path() / "round");
  expect_one_line_error({"round", "cannot be written", "links"},
                        [&] { OutputFile(directory_.path() / "round"); });
}

// As of two processes with the same id, on two machines.
TEST_F(Loadtest, TwoThatWriteOneFileDoNotMixTheirReports) {
  OutputFile first(json_path()), second(json_path());
  first.write("[1,");
  second.write("[2]");
  first.write("1]");
  first.close();
  EXPECT_EQ(report(), nlohmann::json::parse("[1,1]"));
  second.close();
  EXPECT_EQ(report(), nlohmann::json::parse("[2]"));
}

TEST_F(Loadtest, AReportThatCannotBeBroughtToItsPlaceIsLeft) {
  OutputFile file(directory_.path() / "report.json");
  file.write("hours of work");
  std::filesystem::create_directories(directory_.path() / "report.json" / "in the way");
  std::string error;
  try {
    file.close();
  } catch (const Error& caught) {
    error = caught.what();
  }
  const size_t at = error.find(" is in ");
  ASSERT_NE(at, std::string::npos) << error;
  std::ifstream left(error.substr(at + 7));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(left), {}), "hours of work") << error;
}

}  // namespace
}  // namespace outrider
