// What a load test measured, so that it can be measured again: in words, in JSON, on the page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/loadtest/options.h"
#include "launcher/loadtest/questions.h"
#include "outrider/v1/generation.pb.h"

namespace outrider {

// "open loop, 2 requests/s, 30 s, seed 0; 127.0.0.1:50051: 2 ranks, …"
std::string first_line(const LoadtestOptions& options, const v1::GetServerInfoResponse& server);

std::string date();  // "2026-11-23 06:45 UTC"

nlohmann::ordered_json settings_json(const LoadtestOptions& options, const QuestionSource& source);
nlohmann::ordered_json server_json(const v1::GetServerInfoResponse& server,
                                   const v1::GetModelInfoResponse& model);

// The same as {name, value}.
std::vector<std::pair<std::string, std::string>> settings_facts(
    const LoadtestOptions& options, const QuestionSource& source,
    const v1::GetServerInfoResponse& server, const v1::GetModelInfoResponse& model);

}  // namespace outrider
