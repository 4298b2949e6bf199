// Intake: between gRPC's reactions, which only enqueue, and the engine. A few threads render,
// tokenise, validate and submit, so that a long prompt does not hold up the short ones.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "outrider/v1/generation.pb.h"
#include "server/request_conversion.h"
#include "server/service_rate.h"

namespace outrider {

class Intake {
 public:
  // What may wait here and in the engine together: requests, and the tokens of their prompts.
  // service_rate: says when a refused one is worth another try.
  Intake(Engine& engine, const ChatTemplate& chat_template, int64_t max_waiting,
         int64_t max_waiting_tokens, const ServiceRate& service_rate);
  // Whatever still waits ends with UNAVAILABLE.
  ~Intake();
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;

  // Never waits. RESOURCE_EXHAUSTED at once where too many wait.  request_id: the client's, or the
  // one that the server gave it.
  void enqueue(v1::GenerateRequest&& request, std::string request_id, uint64_t tenant,
               std::shared_ptr<RequestSink> sink);

 private:
  struct Item {
    v1::GenerateRequest request;  // its own: gRPC's goes with a call that ends meanwhile
    int64_t answers, bytes;       // n, at most what may be asked for; of the message, for each
    std::string request_id;
    uint64_t tenant;
    std::shared_ptr<RequestSink> sink;
    std::chrono::steady_clock::time_point received;
  };

  void run();
  void process(Item item);

  Engine& engine_;
  RequestContext context_;
  int64_t max_waiting_, max_waiting_tokens_;
  const ServiceRate& service_rate_;
  std::mutex mutex_;  // guards all below but threads_
  std::condition_variable wake_;
  std::deque<Item> waiting_;
  bool stopping_ = false;
  int64_t waiting_answers_ = 0, waiting_bytes_ = 0;  // of all in waiting_
  std::vector<std::thread> threads_;
};

}  // namespace outrider
