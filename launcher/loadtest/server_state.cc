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

v1::GetServerInfoResponse server_info(v1::GenerationService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  v1::GetServerInfoResponse info;
  throw_unless_ok(stub.GetServerInfo(&context, {}, &info));
  return info;
}

}  // namespace

v1::GetServerInfoResponse wait_for_server(grpc::Channel& channel, v1::GenerationService::Stub& stub,
                                          double wait_s) {
  const auto ready_by = Clock::now() + std::chrono::duration<double>(wait_s);
  while (true) {
    try {
      return server_info(stub);
    } catch (const Error&) {
      if (Clock::now() >= ready_by) throw;
    }
    pause_before_retry(channel);
  }
}

int64_t vocab_size(v1::GenerationService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  v1::GetModelInfoResponse model;
  throw_unless_ok(stub.GetModelInfo(&context, {}, &model));
  return model.vocab_size();
}

nlohmann::ordered_json server_afterwards(v1::GenerationService::Stub& stub) {
  const auto settled_by = Clock::now() + kSettleTime;
  try {
    while (true) {
      const v1::ServerStats stats = server_info(stub).stats();
      const bool idle = stats.num_requests_running() == 0 && stats.num_requests_waiting() == 0;
      if (idle || Clock::now() >= settled_by) {
        return {{"num_requests_running", stats.num_requests_running()},
                {"num_requests_waiting", stats.num_requests_waiting()}};
      }
      std::this_thread::sleep_for(kSettlePause);
    }
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace outrider
