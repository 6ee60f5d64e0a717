// The Asio names that discovery uses.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace handoff::epp {

namespace net = boost::asio;
using tcp = net::ip::tcp;
/// Errors are the first of the results instead of exceptions.
inline constexpr auto kUseTuple = net::as_tuple(net::use_awaitable);

}  // namespace handoff::epp
