// Intake: between gRPC's reactions, which only enqueue, and the engine. A thread of its own
// renders, tokenises, validates and submits, in order of arrival.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "outrider/v1/generation.pb.h"
#include "server/request_conversion.h"

namespace outrider {

class Intake {
 public:
  // max_waiting: requests that may wait here and in the engine together.
  Intake(Engine& engine, const ChatTemplate& chat_template, int64_t max_waiting);
  // Whatever still waits ends with UNAVAILABLE.
  ~Intake();
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;

  // Never waits. RESOURCE_EXHAUSTED at once where too many wait. `request` lives until the sink has
  // heard the end.
  void enqueue(const v1::GenerateRequest& request, std::shared_ptr<RequestSink> sink);

 private:
  struct Item {
    const v1::GenerateRequest* request;
    std::shared_ptr<RequestSink> sink;
    std::chrono::steady_clock::time_point received;
  };

  void run();
  void process(const Item& item);

  Engine& engine_;
  RequestContext context_;
  int64_t max_waiting_;
  std::mutex mutex_;  // guards waiting_ and stopping_
  std::condition_variable wake_;
  std::deque<Item> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace outrider
