// See pages.h.
#include "launcher/loadtest/pages.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <optional>

#include "launcher/loadtest/html_page.h"
#include "launcher/loadtest/latency.h"
#include "launcher/loadtest/svg_plot.h"

namespace outrider {
namespace {

constexpr char kIntervals[] =
    "Latencies in milliseconds; small, where enough was measured: 95 % bootstrap interval. "
    "Percentiles are samples that were measured: P99 is the least that 99 % do not exceed.";

using Cell = HtmlPage::Cell;
using Facts = std::vector<std::pair<std::string, std::string>>;

std::string number(double value) {
  if (value < 10) return absl::StrFormat("%.2f", value);
  return value < 100 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

std::string interval_text(const Interval& interval) {
  return number(interval.low) + "\u00a0– " + number(interval.high);  // breaks behind the dash
}

// A figure's caption.
std::string with_intervals(const std::string& caption, const std::vector<ArmResult>& arms) {
  return caption + (has_intervals(arms) ? ", with 95 % intervals." : ".");
}

std::vector<Cell> summary_row(const std::string& name, const Summary& summary) {
  std::vector<Cell> row = {{name}};
  for (const NamedStatistic& statistic : kStatistics) {
    row.push_back({summary.count > 0 ? number(summary.*statistic.member) : "n/a",
                   summary.ci95 ? interval_text(summary.ci95->of(statistic)) : ""});
  }
  row.push_back({summary.count > 0 ? number(summary.max) : "n/a"});
  return row;
}

HtmlPage begin_page(const PageFrame& frame) {
  HtmlPage page(frame.title);
  page.paragraph(frame.about);
  for (const std::string& warning : frame.warnings) page.warning(warning);
  return page;
}

std::string end_page(HtmlPage& page, const PageFrame& frame) {
  page.section("What was measured");
  page.facts(frame.facts);
  page.section("What the names mean");
  page.paragraph(
      "A request's time begins when it was due, not when it was sent, so a stalled server cannot "
      "hide.");
  page.facts(
      {{"TTFT", "until the first token"},
       {"TPOT", "time per token behind the first: (end - first token) / (tokens - 1)"},
       {"ITL", "between chunks of an answer; amortised: shared out among their tokens"},
       {"end to end", "until the last message"},
       {"queue", "in the server, before its first step"},
       {"sent late", "the load test's own delay, from due to sent"},
       {"tokens a step", "of the server, in the mean of the answers; 1 without speculation"}});
  return page.text();
}

// {name, value} for each status that requests of a load failed with. name: of the load; empty:
// there is but one.
void add_errors(const std::string& name, const LoadReport& report, Facts& failed) {
  for (const auto& [code, count] : report.errors_by_code) {
    failed.push_back({name.empty() ? code : name + ", " + code,
                      absl::StrFormat("%d of %d requests; the first: %s", count, report.requests,
                                      report.first_error_by_code.at(code))});
  }
}

void errors(HtmlPage& page, const Facts& failed) {
  if (failed.empty()) return;
  page.section("Errors");
  page.facts(failed);
}

// The share of samples that are not above a value, as stairs.
Series cumulative(const std::string& name, const Samples& samples) {
  std::vector<double> values = samples.values;
  std::sort(values.begin(), values.end());
  Series series{name, {}};
  const auto percent = [&](size_t count) {
    return 100 * static_cast<double>(count) / static_cast<double>(values.size());
  };
  for (size_t i = 0; i < values.size(); ++i) {
    series.points.push_back({values[i], percent(i)});
    series.points.push_back({values[i], percent(i + 1)});
  }
  return series;
}

struct Quantity {
  const char* name;
  Samples LatencySamples::*samples;
  Summary LoadReport::*summary;
};
constexpr Quantity kQuantities[] = {
    {"TTFT", &LatencySamples::ttft, &LoadReport::ttft},
    {"TPOT", &LatencySamples::tpot, &LoadReport::tpot},
    {"end to end", &LatencySamples::e2e, &LoadReport::e2e},
};

// One for each quantity, with a line for each name.
void cumulative_figures(HtmlPage& page, const std::vector<std::string>& names,
                        const std::vector<LatencySamples>& samples) {
  for (const Quantity& quantity : kQuantities) {
    Plot plot{.title = absl::StrFormat("Cumulative distribution of %s", quantity.name),
              .x = {.label = absl::StrFormat("%s, ms", quantity.name)},
              .y = {.label = "% of answers"}};
    for (size_t i = 0; i < names.size(); ++i) {
      plot.series.push_back(cumulative(names[i], samples[i].*quantity.samples));
    }
    page.figure(plot.title, to_svg(plot), names, "How many answers took no longer.", plot.mark);
  }
}

void over_time(HtmlPage& page, const LoadResult& load, double warmup_s) {
  Plot plot{.title = "Latency over time",
            .x = {.label = "due, s after the start"},
            .y = {.label = "ms", .logarithmic = true},
            .series = {{"TTFT", {}}, {"end to end", {}}},
            .mark = Mark::dots};
  for (const RequestRecord& record : load.records) {
    if (!is_measured(record, warmup_s) || !record.ok()) continue;
    const Latency latency = latency_of(record);
    if (latency.ttft) plot.series[0].points.push_back({record.due_s, *latency.ttft});
    plot.series[1].points.push_back({record.due_s, latency.e2e});
  }
  page.figure(
      plot.title, to_svg(plot), {"TTFT", "end to end"},
      "Of each answer; failed requests are not shown. A slope upwards: the server does less "
      "than it is asked.",
      plot.mark);
}

std::vector<Cell> load_row(const std::string& name, const LoadReport& report) {
  std::vector<Cell> row = {
      {name},
      {number(report.requests_per_second)},
      {number(report.tokens_per_second)},
      {absl::StrFormat("%d", report.errors), absl::StrFormat("of %d", report.requests)}};
  for (const Quantity& quantity : kQuantities) {
    const Summary& summary = report.*quantity.summary;
    for (const NamedStatistic& statistic : {kStatistics[1], kStatistics[2], kStatistics[3]}) {
      row.push_back({summary.count > 0 ? number(summary.*statistic.member) : "n/a",
                     summary.ci95 ? interval_text(summary.ci95->of(statistic)) : ""});
    }
  }
  if (report.goodput) row.push_back({absl::StrFormat("%.1f %%", 100 * report.goodput->share)});
  return row;
}

// What limits what its row says.
std::string remarks(const ArmResult& arm) {
  std::string text = arm.failed ? "the server failed" : arm.saturated ? "saturated" : "";
  if (is_of_survivors(arm.report)) text += text.empty() ? "answers alone" : ", answers alone";
  return text;
}

// what: the loads are called; any: of their reports.
std::vector<std::string> load_head(const std::string& what, const LoadReport& any) {
  std::vector<std::string> head = {what, "requests/s", "tokens/s", "errors"};
  for (const Quantity& quantity : kQuantities) {
    for (const char* percentile : {" P50", " P90", " P99"}) {
      head.push_back(absl::StrFormat("%s%s", quantity.name, percentile));
    }
  }
  if (any.goodput) head.push_back("kept the objectives");
  return head;
}

Whisker whisker(const NamedStatistic& statistic, const Statistics& statistics,
                const std::optional<Intervals>& ci95) {
  const double value = statistics.*statistic.member;
  if (!ci95) return {value, value, value};
  const Interval interval = ci95->of(statistic);
  return {value, interval.low, interval.high};
}

// Of all arms: those of the first step.
std::vector<std::string> arm_names(const std::vector<SweepStep>& steps) {
  std::vector<std::string> names;
  for (const ArmResult& arm : steps.front().arms) names.push_back(arm.name());
  return names;
}

size_t place_of(const ArmResult& arm, const std::vector<std::string>& names) {
  return static_cast<size_t>(std::ranges::find(names, arm.name()) - names.begin());
}

// P50, P90 and P99 of one quantity, with a whisker an arm. names: of the arms, in the order of
// their colours.
void arm_figure(HtmlPage& page, const Quantity& quantity, const std::vector<ArmResult>& arms,
                const std::vector<std::string>& names) {
  WhiskerPlot plot{.title = absl::StrFormat("%s, arm by arm", quantity.name),
                   .y_label = "ms",
                   .groups = {"P50", "P90", "P99"}};
  for (const ArmResult& arm : arms) {
    const Summary& summary = arm.report.*quantity.summary;
    if (summary.count == 0) continue;
    plot.series.push_back({.name = arm.name(), .colour = place_of(arm, names)});
    for (size_t p = 1; p <= 3; ++p) {
      plot.series.back().whiskers.push_back(whisker(kStatistics[p], summary, summary.ci95));
    }
  }
  if (!plot.series.empty()) {
    page.figure(plot.title, to_svg(plot), names, with_intervals("Lower is better", arms),
                Mark::dots);
  }
}

void ratio_figure(HtmlPage& page, const std::string& quantity,
                  std::optional<Ratios> ArmResult::*ratios, const std::vector<ArmResult>& arms,
                  std::vector<std::string> names) {
  WhiskerPlot plot{.title = quantity + ", ratio to " + arms.front().name(),
                   .y_label = "ratio",
                   .groups = {"P50", "P90", "P99"},
                   .reference = 1};
  for (const ArmResult& arm : arms) {
    const std::optional<Ratios>& of = arm.*ratios;
    if (!of) continue;
    plot.series.push_back({.name = arm.name(), .colour = place_of(arm, names)});
    for (size_t p = 1; p <= 3; ++p) {
      plot.series.back().whiskers.push_back(whisker(kStatistics[p], *of, of->ci95));
    }
  }
  if (plot.series.empty()) return;
  names[place_of(arms.front(), names)].clear();  // it is the line at 1
  page.figure(plot.title, to_svg(plot), names, with_intervals("Below 1 is faster", arms),
              Mark::dots);
}

// Adds those of one load.
void ratio_rows(const SweepStep& step, std::vector<std::vector<Cell>>& rows) {
  const std::vector<ArmResult>& arms = step.arms;
  for (size_t i = 1; i < arms.size(); ++i) {
    const std::string name = ratio_name(step.name, arms[i], arms.front());
    for (const auto& [what, ratios] : {std::pair("TTFT", &arms[i].ttft),
                                       {"TPOT", &arms[i].tpot},
                                       {"end to end", &arms[i].e2e}}) {
      std::vector<Cell> row = {{name + ", " + what}};
      for (size_t p = 1; p <= 3; ++p) {
        if (!*ratios) {
          row.push_back({"n/a"});
          continue;
        }
        const NamedStatistic& statistic = kStatistics[p];
        Cell cell{absl::StrFormat("%.3f", (**ratios).*statistic.member)};
        if ((*ratios)->ci95) {
          const Interval interval = (*ratios)->ci95->of(statistic);
          cell.small = absl::StrFormat("%.3f\u00a0– %.3f", interval.low, interval.high);
        }
        row.push_back(cell);
      }
      rows.push_back(std::move(row));
    }
  }
}

void ratios_table(HtmlPage& page, const std::vector<SweepStep>& steps) {
  std::vector<std::vector<Cell>> rows;
  std::string without;  // a sentence for each load that has no intervals
  bool any_intervals = false;
  for (const SweepStep& step : steps) {
    ratio_rows(step, rows);
    any_intervals |= has_intervals(step.arms);
    if (step.arms.size() < 2 || has_intervals(step.arms)) continue;
    without += (step.name.empty() ? " There are " : " " + step.name + ": ") +
               why_no_intervals(step.arms) + ".";
  }
  page.table({"ratio", "P50", "P90", "P99"}, rows);
  page.paragraph(std::string("Below 1: less waiting.") +
                 (any_intervals ? " Small: 95 % bootstrap interval over rounds, each with the "
                                  "turns of all arms."
                                : "") +
                 without);
}

// One for each quantity, with a line for each arm.
void throughput_figures(HtmlPage& page, const SweepValues& values,
                        const std::vector<SweepStep>& steps) {
  const std::vector<std::string> names = arm_names(steps);
  const bool saturated = std::ranges::any_of(steps, [](const SweepStep& step) {
    return std::ranges::any_of(step.arms, [](const ArmResult& arm) { return arm.saturated; });
  });
  for (const Quantity& quantity : kQuantities) {
    Plot plot{.title = absl::StrFormat("Throughput against P99 of %s", quantity.name),
              .x = {.label = "tokens/s", .logarithmic = true},
              .y = {.label = absl::StrFormat("P99 of %s, ms", quantity.name), .logarithmic = true},
              .mark = Mark::line_and_dots};
    for (size_t arm = 0; arm < names.size(); ++arm) {
      plot.series.push_back({names[arm], {}});
      const std::vector<const ArmResult*> results = results_of(arm, steps);
      for (size_t i = 0; i < results.size(); ++i) {
        const Summary& summary = results[i]->report.*quantity.summary;
        if (summary.count == 0 || results[i]->failed) continue;
        plot.series.back().points.push_back(
            {results[i]->report.tokens_per_second, summary.p99,
             absl::StrFormat("%g%s", steps[i].value, results[i]->saturated ? "*" : "")});
      }
    }
    page.figure(
        plot.title, to_svg(plot), names,
        std::string("Beside the dots: ") +
            (values.variable == SweepValues::Variable::rate ? "requests/s asked for" : "users") +
            (saturated ? "; *: saturated." : "."),
        plot.mark);
  }
}

// The arms of one load beside each other. all: arms, whose places give them their colours.
void arms_figures(HtmlPage& page, const std::vector<ArmResult>& arms,
                  const std::vector<std::string>& all, double warmup_s) {
  std::vector<std::string> names(all.size());
  std::vector<LatencySamples> samples(all.size());
  for (const ArmResult& arm : arms) {
    const size_t place = place_of(arm, all);
    names[place] = arm.name();
    samples[place] = latency_samples(arm.loads, warmup_s, Unit::turn);
  }
  ratio_figure(page, "TTFT", &ArmResult::ttft, arms, names);
  ratio_figure(page, "TPOT", &ArmResult::tpot, arms, names);
  ratio_figure(page, "end to end", &ArmResult::e2e, arms, names);
  for (const Quantity& quantity : kQuantities) arm_figure(page, quantity, arms, names);
  cumulative_figures(page, names, samples);
}

}  // namespace

std::string load_page(const PageFrame& frame, const LoadResult& load, const LoadReport& report) {
  HtmlPage page = begin_page(frame);
  std::vector<std::pair<std::string, std::string>> numbers = {
      {absl::StrFormat("%d", report.requests), "requests"},
      {absl::StrFormat("%d", report.errors), "errors"},
      {number(report.requests_per_second), "requests/s"},
      {number(report.tokens_per_second), "tokens/s"}};
  if (report.goodput) {
    numbers.push_back(
        {absl::StrFormat("%.1f %%", 100 * report.goodput->share), "kept the objectives"});
  }
  if (report.num_draft_tokens > 0) {
    numbers.push_back({number(report.mean_acceptance_length), "tokens a step"});
  }
  page.headline(numbers);
  page.section("Latency");
  page.table({"", "mean", "P50", "P90", "P99", "P99.9", "max"},
             {summary_row("TTFT", report.ttft), summary_row("TPOT", report.tpot),
              summary_row("ITL", report.itl), summary_row("ITL, amortised", report.itl_amortised),
              summary_row("end to end", report.e2e), summary_row("queue", report.queue),
              summary_row("sent late", report.send_delay)});
  page.paragraph(kIntervals);
  Facts failed;
  add_errors("", report, failed);
  errors(page, failed);
  if (report.cancelled > 0) page.paragraph(cancelled_line(report) + ".");
  if (is_of_survivors(report)) page.paragraph(std::string(kOfSurvivors) + ".");
  page.section("Plots");
  page.begin_figures();
  cumulative_figures(page, {""}, {latency_samples({load}, frame.warmup_s, Unit::question)});
  over_time(page, load, frame.warmup_s);
  page.end_figures();
  return end_page(page, frame);
}

std::string steps_page(const PageFrame& frame, const std::optional<SweepValues>& sweep,
                       const std::vector<SweepStep>& steps) {
  const bool compared = steps.front().arms.front().arm.has_value();
  HtmlPage page = begin_page(frame);
  if (sweep) {
    for (const std::string& verdict : verdicts(*sweep, steps)) page.paragraph(verdict + ".");
    page.section("Throughput against latency");
    page.begin_figures();
    throughput_figures(page, *sweep, steps);
    page.end_figures();
  }
  if (compared) {
    page.section("Ratios");
    ratios_table(page, steps);
  }
  page.section("Throughput and latency");
  std::vector<std::vector<Cell>> rows;
  Facts failed;
  for (const SweepStep& step : steps) {
    for (const ArmResult& arm : step.arms) {
      const std::string name = run_name(step.name, arm.name());
      rows.push_back(load_row(name, arm.report));
      rows.back().front().small = remarks(arm);
      add_errors(name, arm.report, failed);
    }
  }
  page.table(load_head(sweep ? "load" : "arm", steps.front().arms.front().report), rows);
  page.paragraph(kIntervals);
  if (has_survivors(steps)) page.paragraph(std::string("Answers alone: ") + kOfSurvivors + ".");
  errors(page, failed);
  if (compared) {
    for (const SweepStep& step : steps) {
      page.section(step.name.empty() ? "Arm by arm" : step.name);
      page.begin_figures();
      arms_figures(page, step.arms, arm_names(steps), frame.warmup_s);
      page.end_figures();
    }
  } else {
    page.section("Distributions");
    std::vector<std::string> names;
    std::vector<LatencySamples> samples;
    for (const SweepStep& step : steps) {
      names.push_back(step.name);
      samples.push_back(latency_samples(step.arms.front().loads, frame.warmup_s, Unit::question));
    }
    page.begin_figures();
    cumulative_figures(page, names, samples);
    page.end_figures();
  }
  return end_page(page, frame);
}

}  // namespace outrider
