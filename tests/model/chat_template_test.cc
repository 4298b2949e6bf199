// ChatTemplate against what Transformers renders with Jinja2 (tools/chat_template_golden.py).
#include "model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/one_line_error.h"
#include "tests/testing/read_file.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json golden() {
  return json::parse(
      read_file(OUTRIDER_SOURCE_DIR "/tests/model/testdata/chat_template_golden.json"));
}

ChatTemplate from_config(const json& config) {
  const TemporaryDirectory directory;
  directory.write("tokenizer_config.json", config.dump());
  return ChatTemplate::load(directory.path());
}

const std::vector<ChatMessage> kHello = {{"user", "Hello"}};

void expect_refusal(const absl::StatusOr<std::string>& rendered, absl::StatusCode code,
                    const std::string& part) {
  EXPECT_EQ(rendered.status().code(), code);
  EXPECT_THAT(std::string(rendered.status().message()), HasSubstr(part));
}

TEST(ChatTemplate, RendersAsTransformersDoes) {
  const json file = golden();
  const ChatTemplate chat_template = from_config({{"chat_template", file["template"]}});
  ASSERT_GT(file["cases"].size(), 100u);
  for (const json& c : file["cases"]) {
    std::vector<ChatMessage> messages;
    for (const json& m : c["messages"]) messages.push_back({m["role"], m["content"]});
    const auto rendered = chat_template.render(messages, c["add_generation_prompt"].get<bool>());
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ(*rendered, c["rendered"].get<std::string>());
  }
}

TEST(ChatTemplate, IsFoundWhereverADirectoryKeepsIt) {
  const std::string source = golden()["template"];
  const std::string expected = from_config({{"chat_template", source}}).render(kHello).value();
  const json named = {{{"name", "tool_use"}, {"template", "?"}},
                      {{"name", "default"}, {"template", source}}};
  EXPECT_EQ(from_config({{"chat_template", named}}).render(kHello).value(), expected);

  // The file goes before the config; Jinja drops one newline at its end.
  const TemporaryDirectory directory;
  directory.write("tokenizer_config.json", R"({"chat_template": "?"})");
  directory.write("chat_template.jinja", source + "\n");
  EXPECT_EQ(ChatTemplate::load(directory.path()).render(kHello).value(), expected);
}

TEST(ChatTemplate, RefusesWhatItHasNoRendererFor) {
  const auto code = absl::StatusCode::kFailedPrecondition;
  const TemporaryDirectory empty;
  expect_refusal(ChatTemplate::load(empty.path()).render(kHello), code, "no chat template");
  expect_refusal(from_config(json::object()).render(kHello), code, "no chat template");
  expect_refusal(from_config({{"chat_template", nullptr}}).render(kHello), code,
                 "no chat template");
  // XXH3 of "{{ messages }}", by the xxhash package of Python.
  expect_refusal(from_config({{"chat_template", "{{ messages }}"}}).render(kHello), code,
                 "XXH3 cc418f813a04a872");
  const std::string almost = golden()["template"].get<std::string>() + " ";
  expect_refusal(from_config({{"chat_template", almost}}).render(kHello), code, "not one of those");
}

TEST(ChatTemplate, RefusesConversationsThatAreNone) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const ChatTemplate chat_template = from_config({{"chat_template", golden()["template"]}});
  expect_refusal(chat_template.render({}), code, "empty");
  for (const char* role : {"", "User", "tool", "user\n", "system<|im_end|>"}) {
    const std::vector<ChatMessage> messages = {{"user", "a"}, {role, "b"}};
    expect_refusal(chat_template.render(messages), code, "messages[1].role");
  }
}

TEST(ChatTemplate, NeedsNoneThatIsNamedDefault) {
  for (const json& named : {json::array(), json{{{"name", "tool_use"}, {"template", "{{ 1 }}"}}}}) {
    expect_refusal(from_config({{"chat_template", named}}).render(kHello),
                   absl::StatusCode::kFailedPrecondition, "no chat template");
  }
}

TEST(ChatTemplate, RefusesBadFiles) {
  expect_one_line_error({"tokenizer_config.json", "chat_template"}, [] {
    from_config({{"chat_template", 3}});
  });
  expect_one_line_error({"tokenizer_config.json", "chat_template[0].template"}, [] {
    from_config({{"chat_template", {{{"name", "default"}, {"template", 1}}}}});
  });
  const TemporaryDirectory directory;
  directory.write("tokenizer_config.json", "{");
  expect_one_line_error({"tokenizer_config.json", "JSON"},
                        [&] { ChatTemplate::load(directory.path()); });
}

}  // namespace
}  // namespace outrider
