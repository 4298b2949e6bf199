// The program's command line: which commands there are, and how wrong ones are answered.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace outrider {

constexpr int kExitFailed = 1;      // the work failed; one line on stderr says why
constexpr int kExitWrongFlags = 2;  // nothing was begun

// Was told on stderr already, before what may take long: nothing more is said.
class ToldError : public Error {
 public:
  using Error::Error;
};

// The variable that names a file as --config does.
constexpr const char* kConfigVariable = "OUTRIDER_CONFIG";

// Refuses an empty value, which would be taken for that of a flag that was not given. expected: in
// words, such as "a file".
CLI::Validator not_empty(const std::string& expected);

// What the chosen command does; returns the exit code. Throws Error.
using Action = std::function<int()>;

// Each is in the file of its name. It adds a subcommand that sets `action`.
void add_serve_command(CLI::App& app, Action& action);
void add_launch_command(CLI::App& app, Action& action);
void add_generate_command(CLI::App& app, Action& action);
void add_chat_command(CLI::App& app, Action& action);
void add_health_command(CLI::App& app, Action& action);
void add_run_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);
void add_loadtest_command(CLI::App& app, Action& action);
void add_inspect_command(CLI::App& app, Action& action);
void add_plan_command(CLI::App& app, Action& action);
void add_theory_command(CLI::App& app, Action& action);

// arguments: without the program's name. Prints help or what is wrong (naming the nearest right
// flag) and sets `exit_code`; then there is no action.
Action parse_command_line(const std::vector<std::string>& arguments, int& exit_code);

}  // namespace outrider
