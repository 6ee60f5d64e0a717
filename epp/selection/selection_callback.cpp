#include "epp/selection/selection_callback.hpp"

namespace handoff::epp {
namespace {

thread_local AnswerBatch* running_batch = nullptr;

}  // namespace

void AnswerBatch::give() {
  if (empty()) return;
  if (running_batch != nullptr) {
    if (first_) running_batch->add(std::move(first_->callback), std::move(first_->result));
    for (Answer& answer : more_) running_batch->add(std::move(answer.callback), std::move(answer.result));
    first_.reset();
    more_.clear();
    return;
  }
  running_batch = this;
  give_all();
}

// With this as the running batch.
void AnswerBatch::give_all() {
  // Callbacks may append while this runs, so answers are taken off until nothing new came.
  while (!empty()) {
    std::optional<Answer> first = std::exchange(first_, std::nullopt);
    std::vector<Answer> more = std::exchange(more_, {});
    if (first) first->callback(std::move(first->result));
    for (Answer& answer : more) answer.callback(std::move(answer.result));
  }
  running_batch = nullptr;
}

AnswerHold::AnswerHold() : is_outermost_(running_batch == nullptr) {
  if (is_outermost_) running_batch = &batch_;
}

AnswerHold::~AnswerHold() {
  if (is_outermost_) batch_.give_all();
}

}  // namespace handoff::epp
