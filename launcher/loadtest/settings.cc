// See settings.h.
#include "launcher/loadtest/settings.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

std::string compare_text(const std::vector<Arm>& arms) {
  return absl::StrJoin(arms, ", ", [](std::string* text, const Arm& arm) { *text += arm.name(); });
}

std::string load_text(const LoadtestOptions& options) {
  std::string text;
  if (!options.arms.empty()) {
    text = absl::StrFormat("%s in turns, %d rounds; ", compare_text(options.arms), options.rounds);
  }
  if (options.sweep) {
    const bool rates = options.sweep->variable == SweepValues::Variable::rate;
    absl::StrAppendFormat(&text, "%s loop, %s %s", rates ? "open" : "closed",
                          absl::StrJoin(options.sweep->values, ", "),
                          rates ? "requests/s" : "at once");
  } else if (options.rate) {
    text += absl::StrFormat("open loop, %g requests/s", *options.rate);
  } else if (options.concurrency) {
    text += absl::StrFormat("closed loop, %d at once", *options.concurrency);
  } else {
    text += "open loop, " + options.trace;
  }
  if (options.requests) text += absl::StrFormat(", %d requests", *options.requests);
  if (std::isfinite(options.duration())) text += absl::StrFormat(", %g s", options.duration());
  return text;
}

std::string prompts_text(const LoadtestOptions& options) {
  if (!options.trace.empty()) return options.trace;
  if (options.prompt_length) return "random tokens, " + options.prompt_length->text();
  return options.prompts.empty() ? "built-in" : options.prompts;
}

std::string request_text(const v1::GenerateRequest& request) {
  std::string text;
  google::protobuf::util::JsonPrintOptions format;
  format.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(request, &text, format);
  CHECK(status.ok());
  return text;
}

// Whether --raw was given: then a prompt is asked as a text, not as a message.
bool is_raw(const LoadtestOptions& options) {
  return options.request.request_for(std::string()).has_text();
}

std::string ranks_text(const v1::GetServerInfoResponse& server) {
  return server.num_ranks() == 1 ? "1 rank" : absl::StrFormat("%d ranks", server.num_ranks());
}

}  // namespace

std::string first_line(const LoadtestOptions& options, const v1::GetServerInfoResponse& server) {
  return absl::StrFormat("%s, seed %d; %s: %s, %s, lookahead %s", load_text(options), options.seed,
                         options.server.target(), ranks_text(server), server.backend(),
                         server.lookahead());
}

std::string date() {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::Now(), absl::UTCTimeZone());
}

Json settings_json(const LoadtestOptions& options, const QuestionSource& source) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  const auto lengths = [](const auto& value) {
    return value ? Json(value->text()) : Json(nullptr);
  };
  return {
      {"address", options.server.target()},
      {"concurrency", or_null(options.concurrency)},
      {"rate", or_null(options.rate)},
      {"trace", options.trace.empty() ? Json(nullptr) : Json(options.trace)},
      {"duration_s", std::isfinite(options.duration()) ? Json(options.duration()) : Json(nullptr)},
      {"requests", or_null(options.requests)},
      {"warmup_s", options.warmup_s},
      {"timeout_s", options.timeout()},
      {"seed", options.seed},
      {"prompts", prompts_text(options)},
      {"num_prompts", source.prompts.size()},
      {"prompt_length", lengths(options.prompt_length)},
      {"output_length", source.output_length.text()},
      {"raw", is_raw(options)},
      {"request", Json::parse(request_text(options.request.parameters()))}};
}

Json server_json(const v1::GetServerInfoResponse& server, const v1::GetModelInfoResponse& model) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  return {{"version", server.version()},
          {"model", model.name()},
          {"num_ranks", server.num_ranks()},
          {"backend", server.backend()},
          {"numerics", or_null(server.numerics())},
          {"default_drafter", server.default_drafter()},
          {"draft_model", or_null(server.draft_model())},
          {"draft_head", or_null(server.draft_head())},
          {"lookahead", server.lookahead()},
          {"numerics_fingerprint", server.numerics_fingerprint()}};
}

std::vector<std::pair<std::string, std::string>> settings_facts(
    const LoadtestOptions& options, const QuestionSource& source,
    const v1::GetServerInfoResponse& server, const v1::GetModelInfoResponse& model) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"load", load_text(options)},
      {"warm-up", absl::StrFormat("%g s", options.warmup_s)},
      {"seed", absl::StrFormat("%d", options.seed)},
      {"prompts", prompts_text(options)},
      {"--raw", is_raw(options) ? "yes" : "no"},
      {"max_tokens", source.output_length.text()},
      {"request", request_text(options.request.parameters())},
      {"server", absl::StrFormat("%s, Outrider %s, %s, %s", options.server.target(),
                                 server.version(), ranks_text(server), server.backend())},
      {"model", model.name()},
      {"default drafter",
       absl::StrFormat("%s, lookahead %s", server.default_drafter(), server.lookahead())},
      {"date", date()}};
  const std::pair<const char*, const std::string&> where_set[] = {
      {"draft model", server.draft_model()},
      {"draft head", server.draft_head()},
      {"numerics", server.numerics()}};
  for (const auto& [name, value] : where_set) {
    if (!value.empty()) facts.push_back({name, value});
  }
  if (options.objectives.any()) facts.push_back({"objectives", options.objectives.text()});
  return facts;
}

}  // namespace outrider
