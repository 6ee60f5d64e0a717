#include "async.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/this_coro.hpp>
#include <cstdio>
#include <exception>
#include <utility>

namespace handoff::mock {

Awaitable<void> sleep_for(std::chrono::microseconds time) {
  if (time.count() <= 0) co_return;
  net::steady_timer timer(co_await net::this_coro::executor, time);
  // Throws when the coroutine is cancelled: what follows the sleep must not run for a client that has left.
  co_await timer.async_wait(net::use_awaitable);
}

void spawn(net::io_context& io, Awaitable<void> task, const char* name) {
  net::co_spawn(io, std::move(task), [name](const std::exception_ptr& error) {
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "mock-engine: %s: %s\n", name, e.what());
    }
  });
}

void ChangeSignal::notify() {
  for (net::steady_timer* waiter : std::exchange(waiters_, {})) waiter->cancel();
}

Awaitable<void> ChangeSignal::wait_until(std::chrono::steady_clock::time_point until) {
  net::steady_timer timer(co_await net::this_coro::executor, until);
  waiters_.insert(&timer);
  co_await timer.async_wait(kTuple);
  // A waiter that ran out, or whose coroutine was cancelled, is still registered.
  waiters_.erase(&timer);
}

}  // namespace handoff::mock
