// Counts what operator new hands out on this thread: a pass allocates nothing, and a bad file makes
// us allocate little.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/safetensors.h"
#include "tests/model/model_runner.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/counted_allocations.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

class PassAllocations : public ::testing::TestWithParam<const char*> {};

TEST_P(PassAllocations, AreNone) {
  set_float_environment();
  const auto self = make_self_communicator();
  const auto backend = make_cpu_backend();
  constexpr int64_t kRows = 32;
  Transformer model(test_checkpoint(GetParam()), *backend, *self, kRows, 0);
  KvCache cache = model.make_kv_cache(8, 1);
  std::vector<int32_t> tokens(kRows, 7), positions(kRows), slots(kRows, 0), logit_rows = {3, 5};
  for (int32_t i = 0; i < kRows; ++i) positions[i] = i;
  const Buffer logits = backend->allocate(2 * model.shard().vocab.size() * sizeof(float));
  const Batch batch = {TensorView(tokens.data(), DType::i32, {kRows}),
                       TensorView(positions.data(), DType::i32, {kRows}),
                       TensorView(slots.data(), DType::i32, {kRows}),
                       TensorView(logit_rows.data(), DType::i32, {2})};
  const TensorView view = logits.view(DType::f32, {2, model.shard().vocab.size()});
  Stream stream;
  cache.deal_pages(stream);
  model.forward(batch, cache, view, stream);  // what a kernel keeps for its thread, it has now
  const int64_t before = allocations.count;
  model.forward(batch, cache, view, stream);
  EXPECT_EQ(allocations.count, before);
}

INSTANTIATE_TEST_SUITE_P(Models, PassAllocations, ::testing::Values("tiny-odd", "tiny-gpt2-odd"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// A header may ask for anything; memory goes by the size of the file alone.
TEST(Allocations, BadFilesGetLittle) {
  const TemporaryDirectory directory;
  const auto bytes_for = [&](const std::string& file) {
    directory.write("model.safetensors", file);
    const int64_t before = allocations.bytes;
    EXPECT_THROW(SafetensorsFile(directory.path() / "model.safetensors"), Error);
    return allocations.bytes - before;
  };
  const auto with_length = [](uint64_t length, const std::string& header) {
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
  };
  const std::string huge_tensor =
      R"({"a":{"dtype":"BF16","shape":[4611686018427387903],"data_offsets":[0,9223372036854775806]}})";
  EXPECT_LT(bytes_for(with_length(uint64_t{1} << 62, "{}")), 1 << 14);
  EXPECT_LT(bytes_for(with_length(uint64_t{1} << 20, "{}")), 1 << 14);
  EXPECT_LT(bytes_for(with_length(huge_tensor.size(), huge_tensor)), 1 << 16);
  const std::string deep = "{\"a\":" + std::string(1 << 20, '[');
  EXPECT_LT(bytes_for(with_length(deep.size(), deep)), 1 << 16);
  std::string zeros;
  for (int i = 0; i < 1 << 20; ++i) zeros += "0,";
  const std::string long_shape = R"({"a":{"dtype":"U8","shape":[)" + zeros + "0]}}";
  // A parsed number takes 16 bytes for two characters, and vectors double as they grow.
  EXPECT_LT(bytes_for(with_length(long_shape.size(), long_shape)),
            100 * static_cast<int64_t>(long_shape.size()));
}

}  // namespace
}  // namespace outrider
