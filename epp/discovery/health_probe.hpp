#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <string>

namespace handoff::epp {

// One GET of `path` on a connection of its own. Empty: answered with 2xx in time; else what went wrong, in a
// few words. Can be cancelled.
boost::asio::awaitable<std::string> probe_health(boost::asio::ip::tcp::endpoint endpoint, std::string path,
                                                 std::chrono::milliseconds timeout);

}  // namespace handoff::epp
