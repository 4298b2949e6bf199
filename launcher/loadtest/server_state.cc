// See server_state.h.
#include "launcher/loadtest/server_state.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/error.h"
#include "launcher/client.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// One question about the server itself, which may not be there.
constexpr std::chrono::seconds kTimeout{10};
// A server that has just sent the end of an answer may still count it as running.
constexpr milliseconds kSettleTime{2000}, kSettlePause{20};

void throw_unless_ok(const grpc::Status& status) {
  if (status.ok()) return;
  throw Error(std::string(status_name(status.error_code())) + ": " + status.error_message());
}

grpc::Status ask_server_info(v1::GenerationService::Stub& stub, v1::GetServerInfoResponse& info) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  return stub.GetServerInfo(&context, {}, &info);
}

}  // namespace

v1::GetServerInfoResponse server_at_first(const std::shared_ptr<grpc::Channel>& channel,
                                          v1::GenerationService::Stub& stub,
                                          const ServerAddress& server, double wait_s) {
  const auto ready_by = seconds_from_now(wait_s);
  while (true) {
    wait_until_serving(channel, ready_by);
    v1::GetServerInfoResponse info;
    const grpc::Status status = ask_server_info(stub, info);
    if (status.ok()) return info;
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || Clock::now() >= ready_by) {
      throw Error(explain_failure(status, *channel, server));
    }
    pause_before_retry(*channel);
  }
}

v1::GetModelInfoResponse ask_model_info(v1::GenerationService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  v1::GetModelInfoResponse model;
  throw_unless_ok(stub.GetModelInfo(&context, {}, &model));
  return model;
}

nlohmann::ordered_json server_afterwards(v1::GenerationService::Stub& stub) {
  const auto settled_by = Clock::now() + kSettleTime;
  try {
    while (true) {
      v1::GetServerInfoResponse info;
      throw_unless_ok(ask_server_info(stub, info));
      const v1::ServerStats& stats = info.stats();
      const bool idle = stats.num_requests_running() == 0 && stats.num_requests_waiting() == 0 &&
                        stats.kv_pages_used() == 0;
      if (idle || Clock::now() >= settled_by) {
        return {{"num_requests_running", stats.num_requests_running()},
                {"num_requests_waiting", stats.num_requests_waiting()},
                {"kv_pages_used", stats.kv_pages_used()}};
      }
      std::this_thread::sleep_for(kSettlePause);
    }
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace outrider
