#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <string>

namespace handoff::epp {

struct ProbeOutcome {
  std::string failure;   // in a few words; empty: answered with 2xx in time
  bool is_ours = false;  // this process lacks descriptors or memory: nothing was learned of the endpoint
};

// One GET of `path` on a connection of its own. Can be cancelled.
boost::asio::awaitable<ProbeOutcome> probe_health(boost::asio::ip::tcp::endpoint endpoint, std::string path,
                                                  std::chrono::milliseconds timeout);

// From the first probe of an endpoint to the second: between half the interval and the whole one, so that
// endpoints of one file, which are all probed at once in the beginning, are not for ever.
std::chrono::milliseconds first_pause(std::uint64_t worker_id, std::chrono::milliseconds interval);

}  // namespace handoff::epp
