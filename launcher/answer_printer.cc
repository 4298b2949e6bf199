// See answer_printer.h.
#include "launcher/answer_printer.h"

#include <absl/strings/str_format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

constexpr char kDraftedColour[] = "\x1b[32m";
constexpr char kNoColour[] = "\x1b[0m";

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
  command.add_flag("--stats,!--no-stats", stats, "Say on stderr how speculation went (default)");
  command.add_flag("--colour", colour, "Show which tokens were drafted");
}

std::string coloured(const v1::Chunk& chunk) {
  const std::string& text = chunk.text();
  std::string out;
  size_t begin = 0;
  for (int i = 0; i < chunk.text_ends_size() && i < chunk.drafted_size(); ++i) {
    auto end = static_cast<size_t>(chunk.text_ends(i));
    // A character belongs to the token that began it.
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    if (end <= begin || end > text.size()) continue;
    const std::string piece = text.substr(begin, end - begin);
    out += chunk.drafted(i) ? kDraftedColour + piece + kNoColour : piece;
    begin = end;
  }
  return out + text.substr(begin);
}

std::string summary(const v1::Complete& complete) {
  const v1::SpeculationStats& s = complete.speculation();
  const double seconds = complete.timings().total_ms() / 1e3;
  return absl::StrFormat(
      "accepted %d of %d drafted tokens (%.1f %%), %.2f tokens a step, drafter %s; %d tokens in "
      "%.2f s (%.1f a second), the first after %.0f ms",
      s.num_accepted_draft_tokens(), s.num_draft_tokens(), 100 * s.draft_acceptance_rate(),
      s.mean_acceptance_length(), s.drafter(), complete.completion_tokens(), seconds,
      seconds > 0 ? static_cast<double>(complete.completion_tokens()) / seconds : 0,
      complete.timings().ttft_ms());
}

std::string to_json(const std::string& text, const std::vector<int32_t>& token_ids,
                    const v1::Complete& complete) {
  const v1::Timings& timings = complete.timings();
  const v1::SpeculationStats& s = complete.speculation();
  const nlohmann::ordered_json object = {
      {"text", text},
      {"token_ids", token_ids},
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
        {"mean_acceptance_length", s.mean_acceptance_length()},
        {"draft_acceptance_rate", s.draft_acceptance_rate()},
        {"acceptance_by_position",
         std::vector<double>(s.acceptance_by_position().begin(), s.acceptance_by_position().end())},
        {"alpha", s.alpha()},
        {"mode", s.mode()},
        {"drafter", s.drafter()},
        {"seed", s.seed()},
        {"numerics_fingerprint", s.numerics_fingerprint()}}},
  };
  return object.dump();
}

void AnswerPrinter::chunk(const v1::Chunk& chunk) {
  started_ = true;
  if (format_.json) {
    text_ += chunk.text();
    token_ids_.insert(token_ids_.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    return;
  }
  const std::string text = format_.colour ? coloured(chunk) : chunk.text();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void AnswerPrinter::complete(const v1::Complete& complete) {
  started_ = true;
  const std::string last = format_.json ? to_json(text_, token_ids_, complete) : "";
  std::printf("%s\n", last.c_str());
  std::fflush(stdout);
  if (!format_.json && format_.stats) std::fprintf(stderr, "%s\n", summary(complete).c_str());
}

}  // namespace outrider
