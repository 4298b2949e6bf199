// Where tests find checkpoints: the generated ones of tests/testing/checkpoints/*.json, and the
// real model.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/error.h"

namespace outrider {

// The directory of a checkpoint that tools/make_checkpoint.py made of
// tests/testing/checkpoints/NAME.json. Throws Error saying how to make it where it is missing.
inline std::filesystem::path test_checkpoint(const std::string& name) {
  const char* root = std::getenv("OUTRIDER_TEST_CHECKPOINTS");
  const std::filesystem::path directory =
      (root != nullptr ? std::filesystem::path(root)
                       : std::filesystem::path(OUTRIDER_BINARY_DIR) / "checkpoints") /
      name;
  if (!std::filesystem::exists(directory / "config.json")) {
    throw Error(directory.string() +
                ": no config.json; make it with `tools/make_checkpoint.py tests/testing/" +
                "checkpoints/" + name + ".json`, or run the tests with ctest, which does");
  }
  return directory;
}

// SmolLM2-135M-Instruct. Throws Error saying how to fetch it where it is missing.
inline std::filesystem::path real_model() {
  const char* cache = std::getenv("OUTRIDER_CACHE");
  const char* home = std::getenv("HOME");
  const std::filesystem::path root =
      cache != nullptr ? std::filesystem::path(cache)
                       : std::filesystem::path(home != nullptr ? home : "/") / ".cache/outrider";
  const std::filesystem::path directory = root / "SmolLM2-135M-Instruct";
  if (!std::filesystem::exists(directory / "config.json")) {
    throw Error(directory.string() +
                ": no config.json; fetch the model with `tools/fetch_model.py`, or set "
                "OUTRIDER_CACHE to the folder that holds it");
  }
  return directory;
}

}  // namespace outrider
