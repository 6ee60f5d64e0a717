#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "epp/selection/selection.hpp"

namespace handoff::epp {

// Receives the answer of one selection, exactly once, on whatever thread made it possible: the caller's
// before the call returns, or later the one that freed capacity, cancelled, or ran maintain(). No lock of the
// service is held. It must not throw. Move-only, so that it can own a coroutine handler or a stream.
class SelectionCallback {
 public:
  SelectionCallback() = default;
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, SelectionCallback> &&
             std::is_invocable_v<F&, Result<Selection>>)
  SelectionCallback(F function)  // NOLINT(google-explicit-constructor): any function is one
      : holder_(std::make_unique<Holder<F>>(std::move(function))) {}

  explicit operator bool() const { return holder_ != nullptr; }
  void operator()(Result<Selection> result) { holder_->call(std::move(result)); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void call(Result<Selection> result) = 0;
  };
  template <typename F>
  struct Holder final : Base {
    explicit Holder(F value) : function(std::move(value)) {}
    void call(Result<Selection> result) override { function(std::move(result)); }
    F function;
  };
  std::unique_ptr<Base> holder_;
};

// Answers found under a lock, to be given after it.
//
// A callback may call the service again, whose answers may free the next waiter, and so on through a long
// queue. Nested batches of one thread are therefore appended to the running one instead of recursing.
class AnswerBatch {
 public:
  void add(SelectionCallback callback, Result<Selection> result) {
    if (callback) answers_.push_back({std::move(callback), std::move(result)});
  }
  bool empty() const { return answers_.empty(); }
  // Selections that are still to be given.
  template <typename Visit>
  void for_each_selection(Visit&& visit) {
    for (Answer& answer : answers_) {
      if (answer.result) visit(*answer.result);
    }
  }
  void give();

 private:
  struct Answer {
    SelectionCallback callback;
    Result<Selection> result;
  };
  std::vector<Answer> answers_;
};

}  // namespace handoff::epp
