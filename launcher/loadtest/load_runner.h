// LoadRunner: puts loads on a server, one after the other, until it is told to stop.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "launcher/loadtest/load_generator.h"
#include "launcher/loadtest/options.h"
#include "launcher/loadtest/questions.h"
#include "launcher/stop_signals.h"

namespace outrider {

class LoadRunner {
 public:
  // While it lives, signals stop the load under way. All outlive it.
  LoadRunner(const LoadtestOptions& options, Connections& connections, StopSignals& signals);
  ~LoadRunner();
  LoadRunner(const LoadRunner&) = delete;
  LoadRunner& operator=(const LoadRunner&) = delete;

  // Asks `questions` as planned, and counts requests on from the load before. Nothing is sent once
  // it was told to stop. num_speculative_tokens: of each request; nothing: as its flags say.
  LoadResult run(LoadPlan plan, Questions& questions,
                 std::optional<int32_t> num_speculative_tokens = std::nullopt);

  bool stopped();

 private:
  v1::GenerateRequest request(const Question& question) const;

  const LoadtestOptions& options_;
  Connections& connections_;
  StopSignals& signals_;
  int64_t num_sent_ = 0;

  std::mutex mutex_;  // guards all below
  LoadGenerator* running_ = nullptr;
  bool stopped_ = false;
};

}  // namespace outrider
