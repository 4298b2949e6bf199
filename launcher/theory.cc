// `outrider theory`: what speculation is worth for an acceptance rate and a cost of drafting.
#include "spec/theory.h"

#include <absl/strings/str_format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/command_line.h"

namespace outrider {
namespace {

constexpr int kMostTokens = 64;     // of a table; no server drafts so many
constexpr int kDefaultTokens = 15;  // what a server drafts at most

struct TheoryOptions {
  std::vector<double> alphas, costs = {0};
  std::vector<int> tokens;  // K of the rows; empty: 0 … max_tokens
  int max_tokens = kDefaultTokens;
  double target_cost = 1;  // of a pass of more than one row
  std::optional<double> operations;
  bool table = false;

  std::vector<int> rows() const {
    if (!tokens.empty()) return tokens;
    std::vector<int> all;
    for (int k = 0; k <= max_tokens; ++k) all.push_back(k);
    return all;
  }
};

struct TheoryRow {
  double tokens, speedup, operations, target_reads;
};

TheoryRow row(const TheoryOptions& options, double alpha, int k, double c) {
  return {
      expected_tokens(alpha, k), expected_speedup(alpha, k, c, k == 0 ? 1 : options.target_cost),
      operations_growth(alpha, k, options.operations.value_or(c)), target_reads_growth(alpha, k)};
}

// Empty where rows are not free: one that drafts whatever will be accepted may lose by it.
std::string oracle(const TheoryOptions& options, double alpha, double c) {
  return options.target_cost == 1 ? absl::StrFormat("%.3f", oracle_speedup(alpha, c)) : "";
}

// All rows in one Markdown table.
std::string table(const TheoryOptions& options) {
  std::string text =
      "| alpha | K | c | tokens a step | speed-up | operations | target reads | oracle |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const double alpha : options.alphas) {
    for (const int k : options.rows()) {
      for (const double c : options.costs) {
        const TheoryRow r = row(options, alpha, k, c);
        text += absl::StrFormat("| %g | %d | %g | %.3f | %.3f | %.3f | %.3f | %s |\n", alpha, k, c,
                                r.tokens, r.speedup, r.operations, r.target_reads,
                                oracle(options, alpha, c));
      }
    }
  }
  return text;
}

std::string report(const TheoryOptions& options, double alpha, double c) {
  std::string text = absl::StrFormat(
      "alpha %g, c %g: a drafted token is accepted with probability %g, and costs %g of a target "
      "pass\n%4s%15s%10s%12s%14s\n",
      alpha, c, alpha, c, "K", "tokens a step", "speed-up", "operations", "target reads");
  for (const int k : options.rows()) {
    const TheoryRow r = row(options, alpha, k, c);
    text += absl::StrFormat("%4d%15.3f%10.3f%12.3f%14.3f\n", k, r.tokens, r.speedup, r.operations,
                            r.target_reads);
  }
  const int most = std::max(options.max_tokens, std::ranges::max(options.rows()));
  const int best = best_num_draft_tokens(alpha, c, most, options.target_cost);
  text += absl::StrFormat(
      "best K of 0 to %d: %d, %.3f times as fast\n"
      "some K: at least %.3f times, none more than %.3f",
      most, best, row(options, alpha, best, c).speedup,
      least_speedup(alpha, c, options.target_cost), most_speedup(alpha));
  const std::string of_oracle = oracle(options, alpha, c);
  return text + (of_oracle.empty() ? "" : "; an oracle for K: " + of_oracle) + "\n";
}

int theory(const TheoryOptions& options) {
  std::string text;
  if (options.table) {
    text = table(options);
  } else {
    for (const double alpha : options.alphas) {
      for (const double c : options.costs) {
        text += (text.empty() ? "" : "\n") + report(options, alpha, c);
      }
    }
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

void add_theory_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<TheoryOptions>();
  CLI::App* command = app.add_subcommand(
      "theory", "Say what speculation is worth (Leviathan et al. 2023, section 3)");
  command
      ->add_option("--alpha", options->alphas,
                   "Probability that a drafted token is accepted, 0 … 1; several with commas")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.0, 1.0));
  command
      ->add_option("--c", options->costs,
                   "What a drafted token costs, in passes of the target (default 0); likewise")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.0, 1e6));
  command
      ->add_option("--target-cost", options->target_cost,
                   "What a pass of K + 1 rows costs, for K above 0, in passes of one (default 1)")
      ->check(CLI::Range(1.0, 1e6));
  auto* k = command->add_option("--k", options->tokens,
                                "Drafted tokens of a step, with commas (default 0 … --max-k)");
  k->delimiter(',')->allow_extra_args(false)->check(CLI::Range(0, kMostTokens));
  command->add_option("--max-k", options->max_tokens, "The most of them (default 15)")
      ->check(CLI::Range(0, kMostTokens))
      ->excludes(k);
  command
      ->add_option_function<double>(
          "--operations", [options](double c) { options->operations = c; },
          "Operations of the draft over those of the target, for a token (default: as --c)")
      ->check(CLI::Range(0.0, 1e6));
  command->add_flag("--table", options->table, "One Markdown table of all rows");
  command->callback([options, &action] { action = [options] { return theory(*options); }; });
}

}  // namespace outrider
