// What a load test says of the server that it asked, so that it can be measured again.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "launcher/loadtest/settings.h"

namespace outrider {
namespace {

TEST(Settings, NameTheModelAndWhatDrafts) {
  v1::GetServerInfoResponse server;
  server.set_numerics("fast");
  server.set_draft_model("small");
  v1::GetModelInfoResponse model;
  model.set_name("large");
  nlohmann::ordered_json json = server_json(server, model);
  EXPECT_EQ(json["model"], "large");
  EXPECT_EQ(json["numerics"], "fast");
  EXPECT_EQ(json["draft_model"], "small");
  EXPECT_TRUE(json.at("draft_head").is_null());

  const auto facts = settings_facts({}, {}, server, model);
  const auto has = [&](const std::string& name, const std::string& value) {
    return std::ranges::find(facts, std::pair(name, value)) != facts.end();
  };
  EXPECT_TRUE(has("model", "large"));
  EXPECT_TRUE(has("numerics", "fast"));
  EXPECT_TRUE(has("draft model", "small"));
  EXPECT_TRUE(has("--raw", "no"));
  EXPECT_TRUE(std::ranges::none_of(facts, [](const auto& of) { return of.first == "draft head"; }));
}

}  // namespace
}  // namespace outrider
