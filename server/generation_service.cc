// See generation_service.h.
#include "server/generation_service.h"

#include "server/response_conversion.h"
#include "server/status.h"

namespace outrider {

void GenerationService::start(Engine& engine, ServedModel model) {
  auto serving = std::make_unique<Serving>(engine, std::move(model), options_.max_waiting_requests);
  const std::lock_guard lock(mutex_);
  serving_ = std::move(serving);
}

void GenerationService::stop() {
  std::unique_ptr<Serving> serving;  // ends outside of the lock: it waits for the intake's thread
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  serving.swap(serving_);
}

absl::Status GenerationService::not_serving() const {
  return absl::UnavailableError(stopped_ ? "the server is shutting down"
                                         : "the model is still being loaded");
}

void GenerationService::enqueue(const v1::GenerateRequest& request,
                                const std::shared_ptr<Call>& call) {
  call->hold();
  const std::lock_guard lock(mutex_);
  if (serving_ != nullptr) {
    serving_->intake.enqueue(request, call);
  } else {
    call->on_error(not_serving());
  }
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto call = std::make_shared<StreamCall>(context, calls_, options_.calls);
  enqueue(*request, call);
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::GenerateOnce(grpc::CallbackServerContext* context,
                                                          const v1::GenerateRequest* request,
                                                          v1::GenerateOnceResponse* response) {
  const auto call = std::make_shared<UnaryCall>(context, calls_, options_.calls, response);
  enqueue(*request, call);
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::GetModelInfo(grpc::CallbackServerContext* context,
                                                          const v1::GetModelInfoRequest* request,
                                                          v1::GetModelInfoResponse* response) {
  auto* reactor = context->DefaultReactor();
  const std::lock_guard lock(mutex_);
  if (serving_ == nullptr) {
    reactor->Finish(to_grpc(not_serving()));
  } else {
    *response = model_info(serving_->model, serving_->engine.executor().config());
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GetServerInfo(grpc::CallbackServerContext* context,
                                                           const v1::GetServerInfoRequest* request,
                                                           v1::GetServerInfoResponse* response) {
  auto* reactor = context->DefaultReactor();
  const std::lock_guard lock(mutex_);
  if (serving_ == nullptr) {
    reactor->Finish(to_grpc(not_serving()));
  } else {
    *response = server_info(serving_->model, serving_->engine);
    response->mutable_limits()->set_max_waiting_requests(options_.max_waiting_requests);
    response->mutable_limits()->set_max_message_bytes(options_.max_message_bytes);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

}  // namespace outrider
