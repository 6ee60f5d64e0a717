// The Asio names that the sidecar uses. Executors are concrete, since any_executor's indirection buys us
// nothing: every object lives on one loop.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

namespace handoff::sidecar {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using boost::system::error_code;

using Executor = net::io_context::executor_type;
using Socket = net::basic_stream_socket<tcp, Executor>;
using SteadyTimer = net::basic_waitable_timer<std::chrono::steady_clock,
                                              net::wait_traits<std::chrono::steady_clock>, Executor>;
template <class T = void>
using Awaitable = net::awaitable<T, Executor>;
inline constexpr net::use_awaitable_t<Executor> kUseAwaitable{};

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

}  // namespace handoff::sidecar
