#include "epp/selection/selection_callback.hpp"

namespace handoff::epp {
namespace {

thread_local AnswerBatch* running_batch = nullptr;

}  // namespace

void AnswerBatch::give() {
  if (answers_.empty()) return;
  if (running_batch != nullptr) {
    for (Answer& answer : answers_) running_batch->answers_.push_back(std::move(answer));
    answers_.clear();
    return;
  }
  running_batch = this;
  // Callbacks may append while this runs, so batches are taken off whole until nothing new came.
  while (!answers_.empty()) {
    std::vector<Answer> current = std::exchange(answers_, {});
    for (Answer& answer : current) answer.callback(std::move(answer.result));
  }
  running_batch = nullptr;
}

}  // namespace handoff::epp
