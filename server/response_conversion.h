// From the engine to the wire.
#pragma once

#include "engine/engine.h"
#include "model/model_config.h"
#include "outrider/v1/generation.pb.h"
#include "server/served_model.h"

namespace outrider {

v1::Chunk to_proto(const Chunk& chunk);
v1::Complete to_proto(const Completion& completion);
v1::GetModelInfoResponse model_info(const ServedModel& model, const ModelConfig& config);
// What does not change while it serves; the limits of the server itself are left to the caller.
v1::GetServerInfoResponse server_info(const ServedModel& model, const Engine& engine);
v1::ServerStats to_proto(const EngineStats& stats);
// For each drafter that `proto` names.
void add_drafter_stats(const EngineStats& stats, v1::GetServerInfoResponse& proto);

}  // namespace outrider
