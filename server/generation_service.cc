// See generation_service.h.
#include "server/generation_service.h"

#include <absl/strings/str_cat.h>

#include <chrono>
#include <iterator>
#include <utility>

#include "engine/field_error.h"
#include "server/response_conversion.h"
#include "server/status.h"

namespace outrider {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

// The client's id, or a new one, which the client is told before the answer begins.
std::string name_request(const v1::GenerateRequest& request, grpc::CallbackServerContext& context) {
  if (!request.request_id().empty()) return request.request_id();
  std::string id = new_request_id();
  context.AddInitialMetadata("outrider-request-id", id);
  return id;
}

// What the client gives the call.
std::chrono::nanoseconds timeout_of(const grpc::CallbackServerContext& context) {
  return context.deadline() - std::chrono::system_clock::now();
}

// What gRPC would keep until the client has read how the call ended, if it ever does: parsed, a
// message takes many times its bytes. It is not const where gRPC has it, nor looked at any more.
v1::GenerateRequest take(const v1::GenerateRequest* request) {
  v1::GenerateRequest taken;
  taken.Swap(const_cast<v1::GenerateRequest*>(request));
  return taken;
}

}  // namespace

GenerationService::Serving::Serving(Engine& engine, ServedModel model, const ServerOptions& options,
                                    const ServiceRate& service_rate)
    : engine(engine),
      model(std::move(model)),
      model_info(outrider::model_info(this->model, engine.executor().config())),
      server_info(outrider::server_info(this->model, engine)),
      intake(engine, this->model.chat_template, options.max_waiting_requests,
             options.max_waiting_tokens, service_rate) {
  v1::ServerLimits& limits = *server_info.mutable_limits();
  limits.set_max_waiting_requests(options.max_waiting_requests);
  limits.set_max_waiting_tokens(options.max_waiting_tokens);
  limits.set_max_message_bytes(options.max_message_bytes);
  limits.set_max_streams_per_tenant(options.max_streams_per_tenant);
}

void GenerationService::start(Engine& engine, ServedModel model) {
  auto serving = std::make_unique<Serving>(engine, std::move(model), options_, service_rate_);
  const std::lock_guard lock(mutex_);
  serving_ = std::move(serving);
}

void GenerationService::refuse_calls(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  refusal_ = reason;
}

void GenerationService::drain() {
  const std::lock_guard lock(mutex_);
  end_intake();
}

// A reason that is known already says more.
void GenerationService::end_intake() {
  if (!refusal_) refusal_ = "the server is shutting down";
}

void GenerationService::stop() {
  std::unique_ptr<Serving> serving;  // ends outside of the lock: it waits for the intake's thread
  const std::lock_guard lock(mutex_);
  end_intake();
  serving.swap(serving_);
}

std::optional<EngineStats> GenerationService::engine_stats() {
  const std::lock_guard lock(mutex_);
  if (serving_ == nullptr) return std::nullopt;
  return serving_->engine.stats();
}

absl::Status GenerationService::not_serving() const {
  return absl::UnavailableError(refusal_.value_or("the model is still being loaded"));
}

absl::StatusOr<uint64_t> GenerationService::authenticate(
    const grpc::CallbackServerContext& context) const {
  const auto& metadata = context.client_metadata();
  const auto [first, last] = metadata.equal_range("authorization");
  const auto count = std::distance(first, last);
  const grpc::string_ref value = count == 1 ? first->second : grpc::string_ref();
  if (const auto tenant = tokens_.tenant({value.data(), value.size()})) return *tenant;
  return absl::UnauthenticatedError(
      count == 0 ? "no token; expected the metadata authorization: Bearer TOKEN"
                 : "the token is not one of this server's; expected the metadata authorization: "
                   "Bearer TOKEN, once");
}

void GenerationService::enqueue(const grpc::CallbackServerContext& context,
                                v1::GenerateRequest request, std::string request_id,
                                const std::shared_ptr<Call>& call) {
  call->hold();
  const absl::StatusOr<uint64_t> tenant = authenticate(context);
  if (!tenant.ok()) return call->on_error(tenant.status());
  const int64_t most = options_.max_streams_per_tenant;
  const std::lock_guard lock(mutex_);
  if (serving_ == nullptr || refusal_) {
    call->on_error(not_serving());
  } else if (!calls_.admit(call.get(), *tenant, most)) {
    call->on_error(absl::ResourceExhaustedError(
        absl::StrCat("calls under way for this token: ", most,
                     ", the most that the server allows; try again when one has ended")));
  } else {
    serving_->intake.enqueue(std::move(request), std::move(request_id), *tenant, call);
  }
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const std::string request_id = name_request(*request, *context);
  const auto call = std::make_shared<StreamCall>(
      context, calls_, options_.calls, CallRecord(observers_, request_id, timeout_of(*context)));
  enqueue(*context, take(request), request_id, call);
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::GenerateOnce(grpc::CallbackServerContext* context,
                                                          const v1::GenerateRequest* request,
                                                          v1::GenerateOnceResponse* response) {
  const std::string request_id = name_request(*request, *context);
  const auto call = std::make_shared<UnaryCall>(
      context, calls_, options_.calls, CallRecord(observers_, request_id, timeout_of(*context)),
      response);
  enqueue(*context, take(request), request_id, call);
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const v1::AbortRequest* request,
                                                   v1::AbortResponse* response) {
  auto* reactor = context->DefaultReactor();
  const std::string& id = request->request_id();
  const absl::StatusOr<uint64_t> tenant = authenticate(*context);
  if (!tenant.ok()) {
    reactor->Finish(to_grpc(tenant.status()));
  } else if (id.empty() || id.size() > kMaxRequestIdBytes) {
    reactor->Finish(
        to_grpc(field_error("request_id", absl::StrCat("has ", id.size(), " bytes; expected 1 … ",
                                                       kMaxRequestIdBytes))));
  } else if (const int aborted = calls_.abort(id, *tenant); aborted > 0) {
    response->set_num_aborted(aborted);
    reactor->Finish(grpc::Status::OK);
  } else {
    reactor->Finish(to_grpc(absl::NotFoundError("no call has request_id \"" + id + "\"")));
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GetModelInfo(grpc::CallbackServerContext* context,
                                                          const v1::GetModelInfoRequest* request,
                                                          v1::GetModelInfoResponse* response) {
  auto* reactor = context->DefaultReactor();
  const absl::Status authenticated = authenticate(*context).status();
  const std::lock_guard lock(mutex_);
  if (!authenticated.ok()) {
    reactor->Finish(to_grpc(authenticated));
  } else if (serving_ == nullptr) {
    reactor->Finish(to_grpc(not_serving()));
  } else {
    *response = serving_->model_info;
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GetServerInfo(grpc::CallbackServerContext* context,
                                                           const v1::GetServerInfoRequest* request,
                                                           v1::GetServerInfoResponse* response) {
  auto* reactor = context->DefaultReactor();
  const absl::Status authenticated = authenticate(*context).status();
  const std::lock_guard lock(mutex_);
  if (!authenticated.ok()) {
    reactor->Finish(to_grpc(authenticated));
  } else if (serving_ == nullptr) {
    reactor->Finish(to_grpc(not_serving()));
  } else {
    *response = serving_->server_info;
    const EngineStats stats = serving_->engine.stats();
    *response->mutable_stats() = to_proto(stats);
    add_drafter_stats(stats, *response);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

}  // namespace outrider
