#include "model/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint_hash.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/one_line_error.h"

namespace outrider {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Inspect, SaysWhatTheRealModelHolds) {
  const std::string text = inspect_checkpoint(real_model(), 2);
  EXPECT_THAT(text, HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(text, HasSubstr("9 query, 3 KV, of 64 dimensions"));
  EXPECT_THAT(text, HasSubstr("272 in BF16: 134515008 parameters, 256.6 MiB"));
  EXPECT_THAT(text, HasSubstr("tokenizer        tokenizer.json\nchat template    known\n"));
  EXPECT_THAT(text, HasSubstr("norm, activation RMSNorm, SwiGLU\npositions        8192, rotary\n"));
  EXPECT_THAT(text, HasSubstr("EOS tokens       2\n"));
  EXPECT_THAT(text, HasSubstr(checkpoint_hash(real_model())));
  // Keys and values of two heads of 64 in bf16, over 30 layers, on each rank.
  EXPECT_THAT(text, ContainsRegex("0  .0, 4. +.0, 2. +.0, 792. +.0, 24576. +[0-9.]+ +15360\n"));
  EXPECT_THAT(text,
              ContainsRegex("1  .4, 9. +.1, 3. +.792, 1536. +.24576, 49152. +[0-9.]+ +15360\n"));
}

TEST(Inspect, OneRankHoldsWhatTheFilesHold) {
  EXPECT_THAT(inspect_checkpoint(real_model(), 1),
              ContainsRegex("0  .0, 9. +.0, 3. +.0, 1536. +.0, 49152. +256\\.6 +23040\n"));
}

TEST(Inspect, SaysWhatAGpt2Holds) {
  const std::string text = inspect_checkpoint(test_checkpoint("tiny-gpt2"), 1);
  EXPECT_THAT(text, HasSubstr("architecture     GPT2LMHeadModel\n"));
  EXPECT_THAT(text, HasSubstr("norm, activation LayerNorm, GELU by tanh\n"));
  EXPECT_THAT(text, HasSubstr("positions        256, learned\n"));
  EXPECT_THAT(text, Not(HasSubstr("RoPE")));
  // Tokens, positions, the last norm; of a layer the norms, c_attn, c_proj, c_fc and c_proj.
  const int64_t layer = 4 * 64 + 65 * 192 + 65 * 64 + 65 * 256 + 257 * 64;
  EXPECT_THAT(text, HasSubstr("BF16: " + std::to_string((512 + 256) * 64 + 2 * 64 + 2 * layer) +
                              " parameters, 0.3 MiB"));
  EXPECT_THAT(text, ContainsRegex("0  .0, 4. +.0, 4. +.0, 256. +.0, 512. +0\\.3 +512\n"));
}

TEST(Inspect, RefusesAsLoadingWould) {
  expect_one_line_error({"/nowhere: is no directory; expected a checkpoint's"},
                        [] { inspect_checkpoint("/nowhere", 1); });
  expect_one_line_error({"/dev/null: is no directory; expected a checkpoint's"},
                        [] { inspect_checkpoint("/dev/null", 1); });
  expect_one_line_error({"/proc: holds no config.json; expected a checkpoint's"},
                        [] { inspect_checkpoint("/proc", 1); });
  expect_one_line_error({"10 ranks", "9 query heads"},
                        [] { inspect_checkpoint(real_model(), 10); });
}

}  // namespace
}  // namespace outrider
