// Linked to tests that run on a GPU: where there is none, the program ends, and says why.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "backend/cuda_devices.h"
#include "core/error.h"

namespace outrider {
namespace {

class NeedsGpu : public testing::Environment {
 public:
  void SetUp() override {
    try {
      cuda_devices();
      open_cuda_device(0);
    } catch (const Error& error) {
      // Not a failed test: GoogleTest would call those that follow skipped.
      std::cerr << "these tests need a GPU: " << error.what() << std::endl;
      std::exit(EXIT_FAILURE);
    }
  }
};

testing::Environment* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace outrider
