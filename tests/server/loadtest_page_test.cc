// The page of a load test: well formed, whole in itself, and safe whatever its texts hold.
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/loadtest/html_page.h"
#include "launcher/loadtest/pages.h"
#include "launcher/loadtest/svg_plot.h"

namespace outrider {
namespace {

int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// Tags are closed in the order in which they were opened (which HTML does not ask of <meta>).
void expect_well_formed(const std::string& text) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z0-9]+)[^<>]*?(/?)>");
  for (std::sregex_iterator it(text.begin(), text.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if (name == "meta" || (*it)[3].length() > 0) continue;
    if ((*it)[1].length() == 0) {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << "</" << name << ">";
    ASSERT_EQ(open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

void expect_self_contained(const std::string& page) {
  for (const char* part :
       {"http", "src=", "href", "url(", "@import", "<script", "<link", "nan", "inf\"", "inf "}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
  EXPECT_NE(page.find("<!DOCTYPE html>"), std::string::npos);
  EXPECT_NE(page.find("name=\"viewport\""), std::string::npos);
  EXPECT_NE(page.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(page.find("@media print"), std::string::npos);
  expect_well_formed(page);
}

TEST(Ticks, AreRoundNumbersAroundTheRange) {
  EXPECT_EQ(linear_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(linear_ticks(0, 11, 5), (std::vector<double>{0, 5, 10, 15}));
  EXPECT_EQ(linear_ticks(0, 430, 5), (std::vector<double>{0, 100, 200, 300, 400, 500}));
  EXPECT_EQ(linear_ticks(0, 0, 5).back(), 1);
  EXPECT_EQ(linear_ticks(1, std::nextafter(1, 2), 5).back(), 2);
  EXPECT_EQ(logarithmic_ticks(3, 80), (std::vector<double>{2, 5, 10, 20, 50, 100}));
  const std::vector<double> wide = logarithmic_ticks(0.5, 60'000);
  EXPECT_EQ(wide.size(), 7u);
  EXPECT_NEAR(wide.front(), 0.1, 1e-12);
  EXPECT_NEAR(wide.back(), 1e5, 1e-6);
  for (double most = 1e-3; most < 1e7; most *= 1.37) {
    const std::vector<double> ticks = linear_ticks(0, most, 5);
    EXPECT_EQ(ticks.front(), 0);
    EXPECT_GE(ticks.back(), most * (1 - 1e-9));
    EXPECT_GE(ticks.size(), 3u) << most;
    EXPECT_LE(ticks.size(), 7u) << most;
  }
}

TEST(Plot, PutsPointsWhereTheyBelong) {
  const Plot plot{.title = "t", .series = {{"", {{0, 0}, {10, 100}, {5, 50}}}}};
  const std::string svg = to_svg(plot);
  // 0 … 10 is from 62 to 388, 0 … 100 from 220 up to 20.
  EXPECT_NE(svg.find("d=\"M62 220L388 20L225 120\""), std::string::npos) << svg;
  expect_well_formed(svg);
}

TEST(Plot, IsBoundedWhateverItsPoints) {
  Plot plot{.title = "t", .series = {{"", {}}}, .mark = Mark::dots};
  for (int i = 0; i < 200'000; ++i) {
    plot.series[0].points.push_back({std::fmod(i * 0.618, 1.0), std::fmod(i * 0.414, 1.0)});
  }
  EXPECT_LT(to_svg(plot).size(), 1'500'000u);
  plot.mark = Mark::line;
  for (int i = 0; i < 200'000; ++i) plot.series[0].points[static_cast<size_t>(i)] = {1.0 * i, 1.0};
  EXPECT_LT(to_svg(plot).size(), 100'000u);
}

TEST(Plot, TellsItsSeriesApartWithoutColours) {
  std::set<std::string> lines;
  for (size_t i = 0; i < 12; ++i) lines.insert(line_classes(i));
  EXPECT_EQ(lines.size(), 12u);
  EXPECT_EQ(line_classes(1), "line s1 d1");
  EXPECT_EQ(line_classes(6), "line s0 d1");  // colours come again, with other dashes
  const std::vector<Point> points = {{0, 0}, {1, 1}};
  const std::string svg = to_svg(Plot{.title = "t", .series = {{"", points}, {"", points}}});
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(count(svg, line_classes(i)), 1);
  std::set<std::string> big;
  for (size_t i = 0; i < 6; ++i) big.insert(dots(i, true, "M0 0h.1"));
  EXPECT_EQ(big.size(), 6u);
  EXPECT_EQ(count(dots(2, true, "M0 0h.1"), "<path"), 2);  // hollow
  EXPECT_EQ(count(dots(2, false, "M0 0h.1"), "<path"), 1);
}

TEST(Plot, KeepsLabelsWithin) {
  const std::string svg = to_svg(
      Plot{.title = "t", .series = {{"", {{0, 1, "first"}, {5, 1, "middle"}, {10, 1, "last"}}}}});
  for (const char* part : {"text-anchor=\"start\" class=\"label\">first",
                           "text-anchor=\"middle\" class=\"label\">middle",
                           "text-anchor=\"end\" class=\"label\">last"}) {
    EXPECT_EQ(count(svg, part), 1) << part << svg;
  }
}

// One stands above, one below, and a third has no room.
TEST(Plot, LabelsDoNotCoverEachOther) {
  const std::vector<Point> points = {{5, 1, "five"}, {10, 2, "ten"}};
  const std::string svg =
      to_svg(Plot{.title = "t", .series = {{"", points}, {"", points}, {"", points}}});
  EXPECT_EQ(count(svg, ">five<"), 2) << svg;
  EXPECT_EQ(count(svg, ">ten<"), 2) << svg;
}

TEST(Plot, TicksDoNotCoverEachOther) {
  const std::string svg =
      to_svg(Plot{.title = "t", .x = {"x", true}, .series = {{"", {{500, 1}, {99'000, 1}}}}});
  EXPECT_EQ(count(svg, ">100000<"), 1) << svg;
  EXPECT_EQ(count(svg, ">50000<"), 0) << svg;
  EXPECT_EQ(count(svg, ">10000<"), 1) << svg;
}

TEST(Plot, OfNothingIsNothing) {
  EXPECT_EQ(to_svg(Plot{.title = "t"}), "");
  EXPECT_EQ(to_svg(Plot{.title = "t", .series = {{"one", {}}}}), "");
  for (const Plot& plot :
       {Plot{.title = "t", .series = {{"", {{0, 0}}}}}, Plot{.title = "t",
                                                        .x = {"x", true},
                                                        .y = {"y", true},
                                                        .series = {{"", {{0, 5}, {7, 5}}}}}}) {
    EXPECT_EQ(to_svg(plot).find("nan"), std::string::npos);
    EXPECT_EQ(to_svg(plot).find("inf"), std::string::npos);
  }
}

// A goal of 1.01 is to be seen beside values that are near 1; times begin at 0.
TEST(Plot, RatiosAreAroundTheLineOfNoDifference) {
  WhiskerPlot plot{.title = "t",
                   .groups = {"P50", "P99"},
                   .series = {{"", 0, {{0.985, 0.98, 0.99}, {1.005, 1, 1.01}}}},
                   .reference = 1};
  std::string svg = to_svg(plot);
  for (const char* tick : {">0.98<", ">0.99<", ">1<", ">1.01<"}) EXPECT_EQ(count(svg, tick), 1);
  EXPECT_EQ(count(svg, ">0<"), 0) << svg;
  // 0.98 … 1.01 is from 220 up to 20, and 1 at two thirds of that.
  EXPECT_EQ(count(svg, "class=\"axis\" d=\"M62 86.667L388 86.667\""), 1) << svg;
  for (const double all : {0.9, 1.0, 1.1}) {
    plot.series[0].whiskers = {{all, all, all}, {all, all, all}};
    svg = to_svg(plot);
    EXPECT_EQ(count(svg, ">1<"), 1) << svg;
    EXPECT_EQ(svg.find("nan"), std::string::npos);
  }
  plot.reference = 0;
  EXPECT_EQ(count(to_svg(plot), ">0<"), 1);
}

TEST(EscapeHtml, LeavesNothingThatMeansSomething) {
  EXPECT_EQ(escape_html("<b a=\"1\" c='2'>&amp;"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;");
}

constexpr char kHostile[] = "</p><script>alert(1)</script>\"'";

TEST(HtmlPage, EscapesAllTexts) {
  HtmlPage page(kHostile);
  page.section(kHostile);
  page.paragraph(kHostile);
  page.warning(kHostile);
  page.headline({{kHostile, kHostile}});
  page.facts({{kHostile, kHostile}});
  page.table({kHostile}, {{{kHostile, kHostile}}});
  page.figure(kHostile,
              to_svg(Plot{.title = kHostile,
                          .x = {kHostile},
                          .y = {kHostile},
                          .series = {{kHostile, {{1, 1, kHostile}}}}}),
              {kHostile, kHostile}, kHostile, Mark::line);
  expect_self_contained(page.text());
  // title twice, section, paragraph, warning, 2 + 2, 3 of the table; 4 of the plot, and its title,
  // legend and caption
  EXPECT_EQ(count(page.text(), "&lt;script&gt;"), 20);
}

RequestRecord record_of(int64_t index, double due_s, int num_tokens) {
  RequestRecord record;
  record.index = record.question = index;
  record.due_s = record.sent_s = due_s;
  for (int i = 0; i < num_tokens; ++i) {
    record.chunks.push_back({due_s + 0.1 + 0.02 * i, 1});
    record.token_ids.push_back(i);
  }
  record.end_s = due_s + 0.1 + 0.02 * num_tokens;
  return record;
}

RequestRecord failure(double due_s) {
  RequestRecord record = record_of(99, due_s, 0);
  record.status = "INTERNAL";
  record.error = kHostile;
  return record;
}

PageFrame frame() {
  return {
      .title = "t", .about = kHostile, .facts = {{"prompts", kHostile}}, .warnings = {kHostile}};
}

bool is_failure(const RequestRecord& record) { return !record.ok(); }

LoadResult load(int num_answers) {
  LoadResult load{.load_end_s = 3};
  for (int i = 0; i < num_answers; ++i) load.records.push_back(record_of(i, 0.1 * i, 3 + i));
  load.records.push_back(failure(1));
  return load;
}

TEST(Pages, OfALoad) {
  for (const int num_answers : {0, 1, 20}) {
    const LoadResult one = load(num_answers);
    const ReportOptions options{.objectives = parse_objectives("ttft=1s")};
    const std::string page = load_page(frame(), one, make_report({one}, options));
    expect_self_contained(page);
    EXPECT_EQ(count(page, "<figure>"), num_answers == 0 ? 0 : 4);
    EXPECT_EQ(count(page, "INTERNAL"), 1);
    const std::string failed = "1 of " + std::to_string(num_answers + 1) + " requests; the first: ";
    EXPECT_EQ(count(page, failed), 1);
    EXPECT_EQ(count(page, "kept the objectives"), 1);
    EXPECT_NE(page.find(num_answers == 0 ? "n/a" : "P99.9"), std::string::npos);
  }
}

SweepStep step(double value, std::vector<ArmResult> arms) {
  evaluate(arms, {});
  return {.value = value, .name = SweepValues().name(value), .arms = std::move(arms)};
}

TEST(Pages, OfASweep) {
  std::vector<SweepStep> steps;
  for (const int num_answers : {5, 20, 0}) {
    steps.push_back(step(num_answers + 1, {{.loads = {load(num_answers)}}}));
  }
  steps.back().arms[0].saturated = true;
  const std::string page = steps_page(frame(), parse_sweep("rate=6,21,1000"), steps);
  expect_self_contained(page);
  EXPECT_EQ(count(page, "<figure>"), 6);
  EXPECT_EQ(count(page, "INTERNAL"), 3);             // of each load
  EXPECT_EQ(count(page, "kept the objectives"), 0);  // there are none
  EXPECT_NE(page.find("saturated at rate=1"), std::string::npos);
  EXPECT_EQ(count(page, ">answers alone<"), 2);
  EXPECT_EQ(count(page, ">saturated, answers alone<"), 1);
  EXPECT_EQ(count(page, "Answers alone: latencies are of the answers alone"), 1);
  for (SweepStep& step : steps) std::erase_if(step.arms[0].loads[0].records, is_failure);
  for (SweepStep& step : steps) evaluate(step.arms, {});
  EXPECT_EQ(count(steps_page(frame(), parse_sweep("rate=6,21,1000"), steps), "alone"), 0);
}

TEST(Pages, OfAComparison) {
  for (const int num_answers : {0, 1, 20}) {
    const std::vector<SweepStep> steps = {step(
        0, {{.arm = Arm{0}, .loads = {load(20)}}, {.arm = Arm{}, .loads = {load(num_answers)}}})};
    const std::string page = steps_page(frame(), {}, steps);
    expect_self_contained(page);
    EXPECT_EQ(count(page, "<figure>"), num_answers == 0 ? 6 : 9);
    EXPECT_EQ(count(page, "INTERNAL"), 2);  // of each arm
    EXPECT_NE(page.find("K=adaptive / K=0"), std::string::npos);
    EXPECT_EQ(count(page, "TTFT, ratio to K=0"), num_answers == 0 ? 0 : 2);  // plot and its title
  }
}

TEST(Pages, OfASweepOfComparisons) {
  std::vector<SweepStep> steps;
  for (const int num_answers : {5, 20}) {
    steps.push_back(step(num_answers, {{.arm = Arm{0}, .loads = {load(num_answers)}},
                                       {.arm = Arm{}, .loads = {load(num_answers + 1)}}}));
  }
  steps.back().arms[0].saturated = true;
  steps.push_back(step(1000, {{.arm = Arm{}, .loads = {load(0)}}}));
  const std::string page = steps_page(frame(), parse_sweep("rate=5,20,1000,2000"), steps);
  expect_self_contained(page);
  EXPECT_EQ(count(page, "<figure>"), 3 + 9 + 9);  // the last load has nothing to show
  EXPECT_EQ(count(page, "INTERNAL"), 5);
  EXPECT_NE(page.find("K=0: Knee at rate="), std::string::npos);
  EXPECT_NE(page.find("saturated at rate=20, so more was not tried"), std::string::npos);
  EXPECT_NE(page.find("K=adaptive: Knee at rate="), std::string::npos);
  for (const char* load : {"rate=5, ", "rate=20, "}) {
    EXPECT_EQ(count(page, std::string("<th scope=\"row\">") + load + "K=0"), 1);
  }
  EXPECT_EQ(count(page, "rate=5, K=adaptive / K=0 (answers alone), TPOT"), 1);
  EXPECT_EQ(count(page, "rate=20, K=adaptive / K=0 (saturated), TPOT"), 1);
  EXPECT_EQ(count(page, "rate=1000, K=adaptive /"), 0);
  // A line an arm, in the plot and in its legend.
  const size_t plot = page.find("<h3>Throughput against P99 of TTFT");
  const std::string figure = page.substr(plot, page.find("</figure>", plot) - plot);
  EXPECT_EQ(count(figure, "K=0</span>") + count(figure, "K=adaptive</span>"), 2) << figure;
  EXPECT_EQ(count(figure, "\"" + line_classes(0)) + count(figure, "\"" + line_classes(1)), 4);
  EXPECT_EQ(count(figure, ">20*</text>"), 1);
}

}  // namespace
}  // namespace outrider
