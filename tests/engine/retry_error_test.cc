#include "engine/retry_error.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

using std::chrono::milliseconds;

TEST(RetryError, KnowsItsDelay) {
  const absl::Status status = retry_error("too many", milliseconds(1500));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "too many");
  EXPECT_EQ(retry_delay_of(status), milliseconds(1500));
}

TEST(RetryError, OtherStatusesHaveNone) {
  EXPECT_EQ(retry_delay_of(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(retry_delay_of(absl::ResourceExhaustedError("too much")), std::nullopt);
}

}  // namespace
}  // namespace outrider
