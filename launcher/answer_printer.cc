// See answer_printer.h.
#include "launcher/answer_printer.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "spec/drafter_kind.h"

namespace outrider {
namespace {

constexpr char kGreen[] = "\x1b[32m", kYellow[] = "\x1b[33m", kCyan[] = "\x1b[36m";

// Empty: the terminal's own.
std::string colour_of(v1::TokenOrigin origin) {
  switch (origin) {
    case v1::TOKEN_ORIGIN_DRAFTED:
      return kGreen;
    case v1::TOKEN_ORIGIN_CORRECTED:
      return kYellow;
    case v1::TOKEN_ORIGIN_BONUS:
      return kCyan;
    default:
      return "";
  }
}

std::string in_colour(const std::string& colour, const std::string& text) {
  return colour.empty() ? text : colour + text + "\x1b[0m";
}

std::string finish_reason_name(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "STOP";
    case v1::FINISH_REASON_LENGTH:
      return "LENGTH";
    case v1::FINISH_REASON_CANCELLED:
      return "CANCELLED";
    default:
      return "UNSPECIFIED";
  }
}

}  // namespace

void AnswerFormat::add_to(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--format", [this](const std::string& name) { json = name == "json"; },
          "text: as it comes; json: one object at the end")
      ->check(CLI::IsMember({"text", "json"}));
  add_text_flags_to(command);
}

void AnswerFormat::add_text_flags_to(CLI::App& command) {
  command.add_flag("--stats,!--no-stats", stats, "Say on stderr how speculation went (default)");
  command
      .add_option_function<std::string>(
          "--color,--colour",
          [this](const std::string& name) {
            colour = name == "always"  ? Colour::always
                     : name == "never" ? Colour::never
                                       : Colour::automatic;
          },
          "Show by colours who made which token: auto (default: on a terminal that is not dumb, "
          "unless NO_COLOR is set), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
}

bool AnswerFormat::colours() const {
  if (json || colour == Colour::never) return false;
  if (colour == Colour::always) return true;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

bool AnswerFormat::legend() const {
  return colours() && (colour == Colour::always || isatty(STDERR_FILENO) == 1);
}

std::string colour_legend() {
  return in_colour(kGreen, "drafted and accepted") + ", " +
         in_colour(kYellow, "in place of a refused draft") + ", " +
         in_colour(kCyan, "added behind accepted drafts") + ", without drafts";
}

std::string coloured(const v1::Chunk& chunk) {
  const std::string& text = chunk.text();
  std::string out;
  size_t begin = 0;
  for (int i = 0; i < chunk.text_ends_size() && i < chunk.origins_size(); ++i) {
    auto end = static_cast<size_t>(chunk.text_ends(i));
    // A character belongs to the token that began it.
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    if (end <= begin || end > text.size()) continue;
    out += in_colour(colour_of(chunk.origins(i)), text.substr(begin, end - begin));
    begin = end;
  }
  return out + text.substr(begin);
}

namespace {

// What drafting brought and what it cost, as far as that was measured, and whether it kept what it
// was asked to.
std::string of_speculation(const v1::SpeculationStats& s) {
  std::string text;
  if (s.num_draft_tokens() > 0) {
    text += absl::StrFormat("; alpha %.2f", s.alpha());
    if (s.has_draft_cost()) text += absl::StrFormat(", c %.3f", s.draft_cost());
    if (s.has_measured_speedup()) {
      text += absl::StrFormat(": %.2f times as fast as without drafts, predicted %.2f",
                              s.measured_speedup(), s.predicted_speedup());
    }
  }
  const auto drafter = drafter_from_name(s.drafter());
  if (s.num_copied_draft_tokens() > 0 && !(drafter && drafts_by_copying(*drafter))) {
    text += absl::StrFormat("; copied %d of the drafted tokens", s.num_copied_draft_tokens());
  }
  if (s.num_alternative_draft_tokens() > 0) {
    text += absl::StrFormat("; %d drafted tokens stood beside a first one, %d took its place",
                            s.num_alternative_draft_tokens(), s.num_accepted_alternatives());
  }
  if (s.lenience() < 1 && s.num_draft_tokens() > 0) {
    text += absl::StrFormat("; lenience %g moved the distribution by %.3f", s.lenience(),
                            s.lenience_shift());
  }
  if (s.has_tpot_slo_ms()) {
    text += absl::StrFormat("; the objective of %g ms a token was %s", s.tpot_slo_ms(),
                            s.tpot_slo_missed() ? "missed" : "met");
  }
  return text;
}

}  // namespace

std::string summary(const v1::Complete& complete, int64_t num_new) {
  const v1::SpeculationStats& s = complete.speculation();
  const double seconds = complete.timings().total_ms() / 1e3;
  return absl::StrFormat(
             "accepted %d of %d drafted tokens (%.1f %%), %.2f tokens a step, drafter %s; %d "
             "tokens in %.2f s (%.1f a second), the first after %.0f ms",
             s.num_accepted_draft_tokens(), s.num_draft_tokens(), 100 * s.draft_acceptance_rate(),
             s.mean_acceptance_length(), s.drafter(), num_new, seconds,
             seconds > 0 ? static_cast<double>(num_new) / seconds : 0,
             complete.timings().ttft_ms()) +
         of_speculation(s);
}

std::string short_summary(const v1::Complete& complete) {
  const int64_t tokens = complete.completion_tokens();
  std::string text = absl::StrFormat("%d token%s", tokens, tokens == 1 ? "" : "s");
  if (tokens > 1) {
    text += absl::StrFormat(", %.1f ms a token",
                            complete.timings().decode_ms() / static_cast<double>(tokens - 1));
  }
  const v1::SpeculationStats& s = complete.speculation();
  return text + absl::StrFormat(", %.2f tokens a step", s.mean_acceptance_length()) +
         of_speculation(s);
}

namespace {

// A field that may be unset.
nlohmann::ordered_json or_null(bool is_set, double number) {
  return is_set ? nlohmann::ordered_json(number) : nullptr;
}

nlohmann::ordered_json to_json(
    const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs) {
  auto list = nlohmann::ordered_json::array();
  for (const v1::TokenLogprobs& token : logprobs) {
    auto top = nlohmann::ordered_json::array();
    for (const v1::TopLogprob& best : token.top()) {
      top.push_back({{"token_id", best.token_id()}, {"logprob", best.logprob()}});
    }
    list.push_back({{"token_id", token.token_id()}, {"logprob", token.logprob()}, {"top", top}});
  }
  return list;
}

nlohmann::ordered_json to_json(const v1::GenerateOnceResponse& answer) {
  const v1::Complete& complete = answer.complete();
  const v1::Timings& timings = complete.timings();
  const v1::SpeculationStats& s = complete.speculation();
  nlohmann::ordered_json object = {
      {"text", answer.text()},
      {"token_ids", std::vector<int32_t>(answer.token_ids().begin(), answer.token_ids().end())},
      {"finish_reason", finish_reason_name(complete.finish_reason())},
      {"prompt_tokens", complete.prompt_tokens()},
      {"cached_tokens", complete.cached_tokens()},
      {"completion_tokens", complete.completion_tokens()},
      {"timings",
       {{"queue_ms", timings.queue_ms()},
        {"prefill_ms", timings.prefill_ms()},
        {"decode_ms", timings.decode_ms()},
        {"total_ms", timings.total_ms()},
        {"ttft_ms", timings.ttft_ms()}}},
      {"speculation",
       {{"num_spec_steps", s.num_spec_steps()},
        {"num_draft_tokens", s.num_draft_tokens()},
        {"num_accepted_draft_tokens", s.num_accepted_draft_tokens()},
        {"num_copied_draft_tokens", s.num_copied_draft_tokens()},
        {"num_alternative_draft_tokens", s.num_alternative_draft_tokens()},
        {"num_accepted_alternatives", s.num_accepted_alternatives()},
        {"mean_acceptance_length", s.mean_acceptance_length()},
        {"draft_acceptance_rate", s.draft_acceptance_rate()},
        {"acceptance_by_position",
         std::vector<double>(s.acceptance_by_position().begin(), s.acceptance_by_position().end())},
        {"alpha", s.alpha()},
        {"lenience", s.lenience()},
        {"lenience_shift", s.lenience_shift()},
        {"draft_cost", or_null(s.has_draft_cost(), s.draft_cost())},
        {"predicted_speedup", or_null(s.has_predicted_speedup(), s.predicted_speedup())},
        {"measured_speedup", or_null(s.has_measured_speedup(), s.measured_speedup())},
        {"steps_by_lookahead",
         std::vector<int64_t>(s.steps_by_lookahead().begin(), s.steps_by_lookahead().end())},
        {"tpot_slo_ms", or_null(s.has_tpot_slo_ms(), s.tpot_slo_ms())},
        {"tpot_slo_missed", s.tpot_slo_missed()},
        {"mode", s.mode()},
        {"drafter", s.drafter()},
        {"seed", s.seed()},
        {"numerics_fingerprint", s.numerics_fingerprint()}}},
  };
  if (answer.logprobs_size() > 0) object["logprobs"] = to_json(answer.logprobs());
  if (answer.prompt_logprobs_size() > 0) {
    object["prompt_logprobs"] = to_json(answer.prompt_logprobs());
  }
  return object;
}

// Whole, also where a character of it is NUL.
void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

std::string to_json(const std::vector<v1::GenerateOnceResponse>& answers) {
  nlohmann::ordered_json object = to_json(answers.front());
  for (size_t i = 1; i < answers.size(); ++i) object["others"].push_back(to_json(answers[i]));
  return object.dump();
}

void AnswerPrinter::chunk(const v1::Chunk& chunk) {
  started_ = true;
  const std::string text = colours_ ? coloured(chunk) : chunk.text();
  if (!format_.json && chunk.index() == 0) {
    print(text);
    std::fflush(stdout);
  }
  v1::GenerateOnceResponse& answer = answers_.at(chunk.index());
  answer.mutable_text()->append(text);
  answer.mutable_token_ids()->MergeFrom(chunk.token_ids());
  answer.mutable_logprobs()->MergeFrom(chunk.logprobs());
  answer.mutable_prompt_logprobs()->MergeFrom(chunk.prompt_logprobs());
}

void AnswerPrinter::complete(const v1::Complete& complete) {
  started_ = true;
  *answers_.at(complete.index()).mutable_complete() = complete;
  if (++num_complete_ == answers_.size()) print_all();
}

void AnswerPrinter::cut_off() {
  if (started_ && num_complete_ < answers_.size() && !format_.json) print_others();
}

void AnswerPrinter::print_others() {
  std::printf("\n");
  for (size_t i = 1; i < answers_.size(); ++i) {
    std::printf("\nanswer %zu:\n", i + 1);
    print(answers_[i].text() + "\n");
  }
  std::fflush(stdout);
  if (format_.legend()) std::fprintf(stderr, "%s\n", colour_legend().c_str());
}

void AnswerPrinter::print_all() {
  if (format_.json) {
    std::printf("%s\n", to_json(answers_).c_str());
    std::fflush(stdout);
  } else {
    print_others();
  }
  if (format_.json || !format_.stats) return;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const std::string whose = answers_.size() > 1 ? absl::StrFormat("answer %d: ", i + 1) : "";
    std::fprintf(stderr, "%s%s\n", whose.c_str(),
                 summary(answers_[i].complete(), answers_[i].token_ids_size()).c_str());
  }
}

}  // namespace outrider
