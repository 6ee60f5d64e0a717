#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "epp/selection/selection.hpp"

namespace handoff::epp {

// Receives the answer of one selection, exactly once, on whatever thread made it possible: the caller's
// before the call returns, or later the one that freed capacity, cancelled, or ran maintain(). No lock of the
// service is held. It must not throw. Move-only, so that it can own a coroutine handler or a stream; a small
// one is kept in place.
class SelectionCallback {
 public:
  SelectionCallback() = default;
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, SelectionCallback> &&
             std::is_invocable_v<F&, Result<Selection>>)
  SelectionCallback(F function) {  // NOLINT(google-explicit-constructor): any function is one
    if constexpr (kFits<F>) {
      new (space_) InPlace<F>(std::move(function));
    } else {
      new (space_) InPlace<Elsewhere<F>>(Elsewhere<F>{std::make_unique<F>(std::move(function))});
    }
    filled_ = true;
  }
  SelectionCallback(SelectionCallback&& other) noexcept { take(other); }
  SelectionCallback& operator=(SelectionCallback&& other) noexcept {
    if (this == &other) return *this;
    reset();
    take(other);
    return *this;
  }
  SelectionCallback(const SelectionCallback&) = delete;
  SelectionCallback& operator=(const SelectionCallback&) = delete;
  ~SelectionCallback() { reset(); }

  explicit operator bool() const { return filled_; }
  void operator()(Result<Selection>&& result) { held().call(std::move(result)); }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual void call(Result<Selection>&& result) = 0;
    virtual void move_to(std::byte* space) noexcept = 0;
  };
  template <typename F>
  struct InPlace final : Held {
    explicit InPlace(F value) : function(std::move(value)) {}
    void call(Result<Selection>&& result) override { function(std::move(result)); }
    void move_to(std::byte* space) noexcept override { new (space) InPlace(std::move(function)); }
    F function;
  };
  template <typename F>
  struct Elsewhere {
    void operator()(Result<Selection>&& result) { (*function)(std::move(result)); }
    std::unique_ptr<F> function;
  };
  static constexpr std::size_t kSpace = 5 * sizeof(void*);
  template <typename F>
  static constexpr bool kFits = sizeof(InPlace<F>) <= kSpace && alignof(InPlace<F>) <= alignof(void*) &&
                                std::is_nothrow_move_constructible_v<F>;

  Held& held() { return *std::launder(reinterpret_cast<Held*>(space_)); }
  void reset() {
    if (std::exchange(filled_, false)) held().~Held();
  }
  void take(SelectionCallback& other) noexcept {
    if (!other.filled_) return;
    other.held().move_to(space_);
    filled_ = true;
    other.reset();
  }

  alignas(void*) std::byte space_[kSpace];
  bool filled_ = false;
};

// Answers found under a lock, to be given after it.
//
// A callback may call the service again, whose answers may free the next waiter, and so on through a long
// queue. Nested batches of one thread are therefore appended to the running one instead of recursing.
class AnswerBatch {
 public:
  AnswerBatch() = default;
  AnswerBatch(const AnswerBatch&) = delete;
  AnswerBatch& operator=(const AnswerBatch&) = delete;
  void add(SelectionCallback&& callback, Result<Selection>&& result) {
    if (!callback) return;
    if (!first_ && more_.empty()) {
      first_.emplace(std::move(callback), std::move(result));
    } else {
      more_.emplace_back(std::move(callback), std::move(result));
    }
  }
  bool empty() const { return !first_ && more_.empty(); }
  // Selections that are still to be given.
  template <typename Visit>
  void for_each_selection(Visit&& visit) {
    if (first_ && first_->result) visit(*first_->result);
    for (Answer& answer : more_) {
      if (answer.result) visit(*answer.result);
    }
  }
  void give();

 private:
  friend class AnswerHold;
  void give_all();

  struct Answer {
    Answer(SelectionCallback&& to, Result<Selection>&& what)
        : callback(std::move(to)), result(std::move(what)) {}
    SelectionCallback callback;
    Result<Selection> result;
  };
  // Nearly always there is one, which then needs no memory of its own.
  std::optional<Answer> first_;
  std::vector<Answer> more_;
};

// Keeps back the answers that this thread finds while it lives, and gives them when it goes: for whoever
// calls the service under a lock of its own that a callback may need. Declared before that lock, so that it
// goes after it.
class AnswerHold {
 public:
  AnswerHold();
  AnswerHold(const AnswerHold&) = delete;
  AnswerHold& operator=(const AnswerHold&) = delete;
  ~AnswerHold();

 private:
  AnswerBatch batch_;
  const bool is_outermost_;
};

}  // namespace handoff::epp
