// GenerationService: gRPC's reactions. They ask for the client's token, look things up and enqueue,
// so that health checks never wait behind them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "outrider/v1/generation.grpc.pb.h"
#include "server/auth_tokens.h"
#include "server/calls.h"
#include "server/intake.h"
#include "server/served_model.h"
#include "server/server.h"

namespace outrider {

class EngineMetrics;

class GenerationService final : public v1::GenerationService::CallbackService {
 public:
  // What they refer to outlives the service. trace: null for none.
  GenerationService(const ServerOptions& options, TokenCheck tokens, EngineMetrics& metrics,
                    RequestLog& log, TraceWriter* trace)
      : options_(options),
        tokens_(std::move(tokens)),
        observers_{metrics, log, service_rate_, trace} {}

  // Until then calls end with UNAVAILABLE. `engine` lives until stop().
  void start(Engine& engine, ServedModel model);
  // From now on new calls end with UNAVAILABLE and `reason`, whatever else ends the service later.
  void refuse_calls(const std::string& reason);
  // From now on new calls end with UNAVAILABLE.
  void drain();
  // The same; so do those that the engine has not seen yet.
  void stop();

  CallRegistry& calls() { return calls_; }
  // nullopt while there is no engine.
  std::optional<EngineStats> engine_stats();

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GenerateOnce(grpc::CallbackServerContext* context,
                                         const v1::GenerateRequest* request,
                                         v1::GenerateOnceResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

 private:
  // What exists while there is an engine.
  struct Serving {
    Serving(Engine& engine, ServedModel model, const ServerOptions& options,
            const ServiceRate& service_rate);

    Engine& engine;
    ServedModel model;
    v1::GetModelInfoResponse model_info;
    v1::GetServerInfoResponse server_info;  // without the stats
    Intake intake;
  };

  // Why there is no engine to ask, or no new call is taken; mutex_ held.
  absl::Status not_serving() const;
  void end_intake();  // mutex_ held
  // Who asks, or Unauthenticated where the client has to show a token and shows none that is known.
  absl::StatusOr<uint64_t> authenticate(const grpc::CallbackServerContext& context) const;
  void enqueue(const grpc::CallbackServerContext& context, v1::GenerateRequest request,
               std::string request_id, const std::shared_ptr<Call>& call);

  const ServerOptions options_;
  const TokenCheck tokens_;
  ServiceRate service_rate_;
  const CallObservers observers_;
  CallRegistry calls_;
  std::mutex mutex_;  // guards all below; held for moments, and never by the engine
  std::unique_ptr<Serving> serving_;
  std::optional<std::string> refusal_;  // why there are no new calls; nullopt: there are
};

}  // namespace outrider
