// The `outrider` program.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "launcher/command_line.h"

int main(int argc, char** argv) {
  // gRPC's own log lines repeat, in its words, what is reported here.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  try {
    int exit_code = 0;
    const auto action = outrider::parse_command_line({argv + 1, argv + argc}, exit_code);
    const int code = action ? action() : exit_code;
    // What was printed, be it help, may be found not to fit only now.
    if (code != 0 || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) return code;
    std::fputs("outrider: standard output could not be written\n", stderr);
    return outrider::kExitFailed;
  } catch (const outrider::ToldError&) {
    return outrider::kExitFailed;
  } catch (const std::exception& error) {  // Error, or memory that there is not
    std::fprintf(stderr, "outrider: %s\n", error.what());
    return outrider::kExitFailed;
  }
}
