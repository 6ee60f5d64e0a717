// Wakes one waiting coroutine of the same loop.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "sidecar/net.hpp"

namespace handoff::sidecar {

/// An event with at most one waiter. A notify() without a waiter is remembered, once. The waiter is resumed from the loop,
/// never inside notify(), so that the notifier may be destroyed by what the waiter does.
class Signal {
 public:
  explicit Signal(Executor executor) : executor_(std::move(executor)) {}

  void notify() {
    if (!waiter_) {
      set_ = true;
      return;
    }
    net::post(executor_, std::move(waiter_));
    waiter_ = nullptr;
  }

  Awaitable<> wait() {
    if (!set_) {
      co_await net::async_initiate<decltype(kUseAwaitable), void()>(
          [](auto handler, Signal* self) { self->waiter_ = std::move(handler); }, kUseAwaitable, this);
    }
    set_ = false;
  }

  /// Forgets a notification that nobody waited for.
  void clear() { set_ = false; }

 private:
  Executor executor_;
  net::any_completion_handler<void()> waiter_;
  bool set_ = false;
};

}  // namespace handoff::sidecar
