// GenerationService: gRPC's reactions. They only look things up and enqueue, so that health checks
// never wait behind them.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "engine/engine.h"
#include "outrider/v1/generation.grpc.pb.h"
#include "server/calls.h"
#include "server/intake.h"
#include "server/served_model.h"
#include "server/server.h"

namespace outrider {

class GenerationService final : public v1::GenerationService::CallbackService {
 public:
  explicit GenerationService(const ServerOptions& options) : options_(options) {}

  // Until then calls end with UNAVAILABLE. `engine` lives until stop().
  void start(Engine& engine, ServedModel model);
  // From now on calls end with UNAVAILABLE; so do those that the engine has not seen yet.
  void stop();

  CallRegistry& calls() { return calls_; }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GenerateOnce(grpc::CallbackServerContext* context,
                                         const v1::GenerateRequest* request,
                                         v1::GenerateOnceResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

 private:
  // What exists while there is an engine.
  struct Serving {
    Serving(Engine& engine, ServedModel model, int64_t max_waiting)
        : engine(engine),
          model(std::move(model)),
          intake(engine, this->model.chat_template, max_waiting) {}

    Engine& engine;
    ServedModel model;
    Intake intake;
  };

  // Why there is no engine to ask; mutex_ held.
  absl::Status not_serving() const;
  void enqueue(const v1::GenerateRequest& request, const std::shared_ptr<Call>& call);

  const ServerOptions options_;
  CallRegistry calls_;
  std::mutex mutex_;  // guards serving_ and stopped_
  std::unique_ptr<Serving> serving_;
  bool stopped_ = false;
};

}  // namespace outrider
