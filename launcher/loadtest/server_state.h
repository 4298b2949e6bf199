// What a load test asks the server about itself.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "launcher/client.h"
#include "outrider/v1/generation.grpc.pb.h"

namespace outrider {

// Waits wait_s seconds for it where it is not there yet; stub: of the channel. Throws Error with
// status and message.
v1::GetServerInfoResponse server_at_first(const std::shared_ptr<grpc::Channel>& channel,
                                          v1::GenerationService::Stub& stub,
                                          const ServerAddress& server, double wait_s);

// Throws Error.
v1::GetModelInfoResponse ask_model_info(v1::GenerationService::Stub& stub);

// What the server still has to do once all answers are there: nothing, where nobody else asks it.
nlohmann::ordered_json server_afterwards(v1::GenerationService::Stub& stub);

}  // namespace outrider
