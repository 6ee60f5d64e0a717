// The Asio names this folder uses, in one place. Everything runs on one io_context with one thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <unordered_set>

namespace handoff::mock {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using ErrorCode = boost::system::error_code;

template <typename T>
using Awaitable = net::awaitable<T>;

// Completes with (error, ...) instead of throwing. A coroutine that was cancelled still throws at its *next*
// await, which is how an abandoned engine request unwinds; its clean-up is in destructors.
inline constexpr auto kTuple = net::as_tuple(net::use_awaitable);

// Longer than any mock engine lives.
inline constexpr auto kForEver = std::chrono::hours(24);

Awaitable<void> sleep_for(std::chrono::microseconds time);

// Starts a background task. An exception that leaves it is reported on stderr under `name`, never lost.
void spawn(net::io_context& io, Awaitable<void> task, const char* name);

// "Something countable changed." Owned by Engine; waiters re-check their condition after each wake-up.
class ChangeSignal {
 public:
  void notify();
  // Returns after notify(), or at `until`.
  Awaitable<void> wait_until(std::chrono::steady_clock::time_point until);

 private:
  std::unordered_set<net::steady_timer*> waiters_;
};

}  // namespace handoff::mock
