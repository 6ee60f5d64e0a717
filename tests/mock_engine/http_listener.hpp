// Accepts HTTP connections on one port and can throw all of them away.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "exchange.hpp"
#include "http_session.hpp"

namespace handoff::mock {

// Owned by main(). Sessions live on their own and are known here by pointer while they run.
class HttpListener {
 public:
  HttpListener(Services& services, const std::string& bind, std::uint16_t port, Door door);

  void start();
  std::string address() const;
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  // Closes the port and resets every connection.
  void close();

 private:
  Awaitable<void> accept_loop();
  Awaitable<void> run_session(tcp::socket socket);

  Services& services_;
  tcp::acceptor acceptor_;
  Door door_;
  std::int64_t next_id_ = 1;
  std::unordered_set<HttpSession*> sessions_;
};

std::string printed(const tcp::endpoint& endpoint);

}  // namespace handoff::mock
