// `outrider chat`: a conversation with a running server, a line at a time.
#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "launcher/answer_printer.h"
#include "launcher/client.h"
#include "launcher/command_line.h"
#include "launcher/request_flags.h"
#include "model/utf8.h"

namespace outrider {
namespace {

constexpr char kPrompt[] = "> ";

struct ChatOptions {
  ServerAddress server;
  RequestFlags request;
  AnswerFormat format;
};

// SIGINT (Ctrl-C), taken by a thread of its own: cancels the call that is running.
class Interrupts {
 public:
  // Make it before any other thread is started: they inherit that the signal is blocked. idle:
  // called on a thread of its own where no call is running.
  explicit Interrupts(std::function<void()> idle) : idle_(std::move(idle)) {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signal_, nullptr);
    thread_ = std::thread([this] { run(); });
  }
  ~Interrupts() {
    ended_ = true;
    pthread_kill(thread_.native_handle(), SIGINT);
    thread_.join();
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  void begin(grpc::ClientContext& call) {
    const std::lock_guard lock(mutex_);
    call_ = &call;
    cancelled_ = false;
  }
  // The call is over. Returns whether a signal cancelled it.
  bool end() {
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    return cancelled_;
  }

 private:
  void run() {
    int signal = 0;
    while (sigwait(&signal_, &signal) == 0 && !ended_) {
      const std::lock_guard lock(mutex_);
      if (call_ != nullptr) {
        call_->TryCancel();
        cancelled_ = true;
      } else {
        idle_();
      }
    }
  }

  std::function<void()> idle_;
  sigset_t signal_;
  std::mutex mutex_;                     // guards the next two
  grpc::ClientContext* call_ = nullptr;  // that runs; null: none
  bool cancelled_ = false;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

class Conversation {
 public:
  Conversation(const ChatOptions& options, Interrupts& interrupts)
      : options_(options),
        interrupts_(interrupts),
        channel_(connect_to_server(options.server)),
        stub_(v1::GenerationService::NewStub(channel_)),
        colours_(options.format.colours()) {}

  // Answers a line, or does what it commands. False: it ends the conversation.
  bool hear(std::string line);

  bool failed() const { return failed_; }  // one line at least

 private:
  void answer(const std::string& line);
  void add_message(const char* role, const std::string& content) {
    v1::ChatMessage& message = *history_.add_messages();
    message.set_role(role);
    message.set_content(content);
  }
  void refuse(const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    failed_ = true;
  }

  const ChatOptions& options_;
  Interrupts& interrupts_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  bool colours_;
  bool failed_ = false;
  v1::Chat history_;
};

bool Conversation::hear(std::string line) {
  if (line.ends_with('\r')) line.pop_back();  // of CR LF
  if (line == "/quit") return false;
  if (line == "/reset") {
    history_.Clear();
  } else if (line.starts_with('/')) {
    refuse("unknown command " + line + "; expected /reset or /quit (a message begins with no /)");
  } else if (!is_valid_utf8(line)) {
    refuse("the line is not UTF-8");
  } else if (line.find_first_not_of(" \t\r") != std::string::npos) {
    answer(line);
  }
  return true;
}

void Conversation::answer(const std::string& line) {
  add_message("user", line);
  std::string text;
  v1::Complete complete;
  const auto print = [&](const v1::GenerateResponse& response) {
    if (response.has_complete()) complete = response.complete();
    if (!response.has_chunk()) return;
    text += response.chunk().text();
    const std::string shown = colours_ ? coloured(response.chunk()) : response.chunk().text();
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  };
  grpc::ClientContext context;
  interrupts_.begin(context);
  const grpc::Status status =
      stream_answer(*stub_, context, options_.request.request_for(history_), print);
  const bool stopped = interrupts_.end() && status.error_code() == grpc::StatusCode::CANCELLED;
  if (!text.empty() || status.ok()) std::printf("\n");
  std::fflush(stdout);
  if (status.ok() || (stopped && !text.empty())) {
    add_message("assistant", text);
  } else {
    history_.mutable_messages()->RemoveLast();  // as if the line had not been said
  }
  if (stopped) {
    std::fprintf(stderr, "stopped\n");
  } else if (!status.ok()) {
    refuse(explain_failure(status, *channel_, options_.server));
  } else if (options_.format.stats) {
    std::fprintf(stderr, "%s\n", short_summary(complete).c_str());
  }
}

int chat(const ChatOptions& options) {
  const bool interactive = isatty(STDIN_FILENO) == 1;
  Interrupts interrupts([interactive] {
    if (!interactive) _exit(128 + SIGINT);
    std::fprintf(stderr, "\n%s", kPrompt);  // the terminal has dropped what was typed
  });
  Conversation conversation(options, interrupts);
  if (interactive) {
    std::fprintf(stderr,
                 "/reset forgets what was said, /quit or Ctrl-D ends, Ctrl-C stops an "
                 "answer\n");
  }
  if (options.format.legend()) std::fprintf(stderr, "%s\n", colour_legend().c_str());
  std::string line;
  do {
    if (interactive) std::fputs(kPrompt, stderr);
    if (!std::getline(std::cin, line)) {
      if (interactive) std::fputs("\n", stderr);
      break;
    }
  } while (conversation.hear(line));
  return conversation.failed() ? kExitFailed : 0;
}

}  // namespace

void add_chat_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a running server, a line at a time");
  options->server.add_to(*command);
  options->request.add_conversation_to(*command);
  options->format.add_text_flags_to(*command);
  command->callback([options, &action] { action = [options] { return chat(*options); }; });
}

}  // namespace outrider
