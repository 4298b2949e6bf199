// See command_line.h.
#include "launcher/command_line.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "core/version.h"
#include "launcher/nearest_name.h"
#include "launcher/toml_config.h"

namespace outrider {
namespace {

// Before any other check of a flag for a number, and before CLI11 reads it: CLI11 takes an empty
// text for 0, or for a flag that was not given, 010 for 8, -1 for the greatest seed, NaN for what
// is in every range, and its words for what it cannot read say neither what is wrong nor what is
// expected.
template <typename T>
void read_whole(CLI::Option& option, const std::string& expected) {
  option.transform(CLI::Validator(
      [expected](std::string& text) {
        T number;
        if (!absl::SimpleAtoi(text, &number)) {
          return absl::StrCat("is \"", text, "\"; expected a whole number ", expected);
        }
        text = std::to_string(number);
        return std::string();
      },
      ""));
}

// A flag that stands alone or with true or false behind its =.
bool is_switch(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

std::string no_truth_value(const std::string& text) {
  return "is \"" + text + "\"; expected true or false";
}

void check_value(CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (is_switch(option)) {
    option.check(CLI::Validator(
        [reads = CLI::TypeValidator<bool>()](std::string& text) {
          return reads(text).empty() ? std::string() : no_truth_value(text);
        },
        ""));
  } else if (type.starts_with("INT64")) {  // where its type_name() says so
    read_whole<int64_t>(option, absl::StrCat("of at most ", INT64_MAX));
  } else if (type.starts_with("INT")) {  // of 32 bits, or in a range within them
    read_whole<int32_t>(option, absl::StrCat("of at most ", INT32_MAX));
  } else if (type.starts_with("UINT")) {
    read_whole<uint64_t>(option, absl::StrCat("from 0 to ", UINT64_MAX));
  } else if (type.starts_with("FLOAT")) {
    option.transform(CLI::Validator(
        [](std::string& text) {
          double number;
          const bool finite = absl::SimpleAtod(text, &number) && std::isfinite(number);
          return finite ? std::string() : "is \"" + text + "\"; expected a number";
        },
        ""));
  }
}

// --max-tokens from OUTRIDER_MAX_TOKENS.
void read_environment(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option == command.get_help_ptr()) continue;
    std::string name = "OUTRIDER_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    option->envname(name);
  }
}

// What holds for every command: --config may stand behind it, and where it is the one that was
// named, each of its flags also comes from the environment. (CLI11 reads that for all commands.)
void set_up(CLI::App& command) {
  command.fallthrough();
  command.preparse_callback([&command](size_t) { read_environment(command); });
  for (CLI::Option* option : command.get_options()) check_value(*option);
  for (CLI::App* inner : command.get_subcommands({})) set_up(*inner);
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

bool is_among(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

struct Arguments {
  std::vector<std::string> before;  // the --: commands, flags and their values, a prompt
  std::vector<std::string> behind;  // with the --
};

// The option that the flag stands for behind the command; null: none.
const CLI::Option* option_of(const CLI::App* command, const std::string& flag) {
  for (; command != nullptr; command = command->get_parent()) {
    if (const CLI::Option* option = command->get_option_no_throw(flag)) return option;
  }
  return nullptr;
}

// CLI11 takes what stands behind --flag= for its value: here the empty one becomes an argument of
// its own. Throws CLI::ValidationError where the flag is one that takes none.
Arguments take_apart(const CLI::App& app, const std::vector<std::string>& arguments) {
  Arguments parts;
  const CLI::App* command = &app;  // the innermost so far
  bool value_follows = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--" && !value_follows) {
      parts.behind.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    parts.before.push_back(argument);
    if (std::exchange(value_follows, false)) continue;
    for (const CLI::App* inner : command->get_subcommands({})) {
      if (inner->get_name() == argument) command = inner;
    }
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    const CLI::Option* option = flag.starts_with("--") ? option_of(command, flag) : nullptr;
    if (option == nullptr) continue;
    value_follows = equals == std::string::npos && !is_switch(*option);
    if (equals + 1 != argument.size()) continue;
    if (is_switch(*option)) throw CLI::ValidationError(flag, no_truth_value(""));
    parts.before.back() = flag;
    parts.before.emplace_back();
  }
  return parts;
}

// Whether the flag stands behind a serve that no -- precedes.
bool behind_bare_serve(const Arguments& arguments, const std::string& flag) {
  const auto end = arguments.before.end();
  return std::find(std::find(arguments.before.begin(), end, "serve"), end, flag) != end;
}

// Where the value came from of the flag that the message is about, if it was not typed.
std::string source_of(const CLI::App& app, const CLI::App& command, const Arguments& arguments,
                      const std::string& message) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string flag = option->get_name();
    const bool meant =
        message.starts_with(flag + ":") || message.starts_with(flag + " requires ") ||
        message.starts_with(flag + " excludes ") || message.ends_with(" excludes " + flag);
    if (!meant) continue;
    std::vector<std::string> names;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    const auto& before = arguments.before;
    const bool typed = std::any_of(before.begin(), before.end(), [&](const std::string& argument) {
      return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return argument == name || argument.starts_with(name + "=");
      });
    });
    if (typed || names.empty()) continue;
    const std::string file = app.get_config_ptr()->as<std::string>();
    const char* value = std::getenv(option->get_envname().c_str());
    std::vector<std::string> sources;
    if (!file.empty()) sources.push_back("--config " + file);
    if (value != nullptr && *value != '\0') sources.push_back(option->get_envname());
    if (sources.empty()) continue;
    return absl::StrCat(" (", absl::StrJoin(sources, " or "), ")");
  }
  return "";
}

// One line for what CLI11 found wrong.
std::string explain(const CLI::App& app, const Arguments& arguments, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::FileError*>(&error) != nullptr) {
    const CLI::Option& config = *app.get_config_ptr();
    return absl::StrCat("--config: is \"", config.as<std::string>(),
                        "\"; expected a file that can be read",
                        config.empty() ? absl::StrCat(" (", kConfigVariable, ")") : "");
  }
  const CLI::App* command = &app;  // the innermost that was named
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  for (const std::string& argument : app.remaining(true)) {
    if (argument == "--") continue;
    const bool is_flag = is_among(arguments.before, argument) ||
                         !is_among(arguments.behind, argument);  // the rest of -xyz is in neither
    if (is_flag && argument.starts_with('-') && argument.size() > 1) {
      const std::string flag = argument.substr(0, argument.find('='));
      if (command->get_name() == "launch" && behind_bare_serve(arguments, argument)) {
        return "unknown flag " + flag + " of launch; put -- before serve and its flags";
      }
      return "unknown flag " + flag + did_you_mean(flag, flags_of(*command));
    }
    if (!commands_of(*command).empty()) {
      return "unknown command " + argument + did_you_mean(argument, commands_of(*command));
    }
    if (command->get_option_no_throw("prompt") != nullptr) {
      return "found " + argument + " behind the prompt; quote a prompt of several words";
    }
  }
  std::string message = error.what();
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message + source_of(app, *command, arguments, message);
}

}  // namespace

CLI::Validator not_empty(const std::string& expected) {
  return {[expected](const std::string& text) {
            return text.empty() ? "is empty; expected " + expected : std::string();
          },
          ""};
}

Action parse_command_line(const std::vector<std::string>& arguments, int& exit_code) {
  Action action;
  CLI::App app("Serves a large language model with speculative decoding.", "outrider");
  app.set_version_flag("--version", std::string("outrider ") + kVersion);
  app.add_subcommand("version", "Print the version")->callback([&action] {
    action = [] {
      std::printf("outrider %s\n", kVersion);
      return 0;
    };
  });
  add_serve_command(app, action);
  add_launch_command(app, action);
  add_generate_command(app, action);
  add_chat_command(app, action);
  add_health_command(app, action);
  add_run_command(app, action);
  add_inspect_command(app, action);
  add_plan_command(app, action);
  add_theory_command(app, action);
  add_bench_command(app, action);
  add_loadtest_command(app, action);
  app.require_subcommand(1);
  // CLI11 reads the file before the environment.
  const char* config = std::getenv(kConfigVariable);
  const bool config_named = config != nullptr && *config != '\0';
  app.set_config("--config", config_named ? config : "",
                 "A TOML file with flags: a table for each command", config_named)
      ->check(not_empty("a file"));
  app.config_formatter(std::make_shared<TomlConfig>(app));
  for (CLI::App* command : app.get_subcommands({})) set_up(*command);

  exit_code = 0;
  Arguments parts;
  try {
    parts = take_apart(app, arguments);
    std::vector<std::string> reversed(parts.behind.rbegin(), parts.behind.rend());
    reversed.insert(reversed.end(), parts.before.rbegin(), parts.before.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::Success& help) {
    app.exit(help);
    return {};
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "outrider: %s\n", explain(app, parts, error).c_str());
    exit_code = kExitWrongFlags;
    return {};
  }
  return action;
}

}  // namespace outrider
