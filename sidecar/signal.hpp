// Wakes one waiting coroutine of the same loop.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

#include "sidecar/net.hpp"

namespace handoff::sidecar {

/// An event with at most one waiter. A notify() without a waiter is remembered, once. The waiter is resumed
/// from the loop, never inside notify(), so that the notifier may be destroyed by what the waiter does.
class Signal {
 public:
  explicit Signal(Executor executor) : executor_(std::move(executor)) {}

  void notify() {
    if (!waiter_) {
      set_ = true;
      return;
    }
    net::post(executor_, std::move(*waiter_));
    waiter_.reset();
  }

  Awaitable<> wait() {
    if (!set_) {
      co_await net::async_initiate<decltype(kUseAwaitable), void()>(
          [](Waiter waiter, Signal* self) { self->waiter_.emplace(std::move(waiter)); }, kUseAwaitable, this);
    }
    set_ = false;
  }

  /// Forgets a notification that nobody waited for.
  void clear() { set_ = false; }

 private:
  using Waiter = net::async_result<net::use_awaitable_t<Executor>, void()>::handler_type;

  Executor executor_;
  std::optional<Waiter> waiter_;
  bool set_ = false;
};

}  // namespace handoff::sidecar
