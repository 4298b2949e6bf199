#include "engine/inbox.h"

#include <algorithm>

namespace outrider {

namespace {

int64_t answers(const Submission& submission) { return submission.request.sampling.n; }

int64_t tokens(const Submission& submission) {
  const Request& request = submission.request;
  return answers(submission) * (std::ssize(request.prompt) + std::ssize(request.emitted));
}

}  // namespace

Submission* Inbox::closed() {
  static Submission mark;
  return &mark;
}

bool Inbox::push(std::unique_ptr<Submission>& submission) {
  const int64_t waiting = answers(*submission), length = tokens(*submission);
  num_answers_ += waiting;
  num_tokens_ += length;
  Submission* head = head_.load();
  do {
    if (head == closed()) {
      num_answers_ -= waiting;
      num_tokens_ -= length;
      return false;
    }
    submission->next = head;
  } while (!head_.compare_exchange_weak(head, submission.get()));
  submission.release();
  return true;
}

Inbox::Submissions Inbox::take() {
  Submission* const newest = head_.load(std::memory_order_relaxed);
  if (newest == nullptr || newest == closed()) return {};
  return unwind(head_.exchange(nullptr));
}

Inbox::Submissions Inbox::close() {
  Submission* const newest = head_.exchange(closed());
  return newest == closed() ? Submissions() : unwind(newest);
}

Inbox::Submissions Inbox::unwind(Submission* newest) {
  Submissions submissions;
  while (newest != nullptr) {
    Submission* const next = newest->next;
    submissions.emplace_back(newest);
    num_answers_ -= answers(*newest);
    num_tokens_ -= tokens(*newest);
    newest = next;
  }
  std::reverse(submissions.begin(), submissions.end());
  return submissions;
}

}  // namespace outrider
