#include "http_listener.hpp"

#include <boost/asio/socket_base.hpp>
#include <utility>

namespace handoff::mock {

HttpListener::HttpListener(Services& services, const std::string& bind, std::uint16_t port, Door door)
    : services_(services),
      acceptor_(services.engine.io(), tcp::endpoint(net::ip::make_address(bind), port)),
      door_(door) {
  acceptor_.listen(4096);
}

void HttpListener::start() {
  spawn(services_.engine.io(), accept_loop(), "accept");
}

std::string HttpListener::address() const {
  return printed(acceptor_.local_endpoint());
}

void HttpListener::close() {
  ErrorCode ignored;
  acceptor_.close(ignored);
  for (HttpSession* session : sessions_) session->reset();
}

Awaitable<void> HttpListener::accept_loop() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kTuple);
    if (error == net::error::operation_aborted || error == net::error::bad_descriptor) co_return;
    if (error) {
      // Out of descriptors: try again a little later instead of spinning.
      co_await sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    if (door_ == Door::kEngine) {
      ++services_.engine.counters().connections_accepted;
      if (services_.faults.refuses_connection()) {
        ++services_.engine.counters().fault_hits;
        ErrorCode ignored;
        socket.set_option(net::socket_base::linger(true, 0), ignored);
        continue;
      }
    }
    spawn(services_.engine.io(), run_session(std::move(socket)), "session");
  }
}

Awaitable<void> HttpListener::run_session(tcp::socket socket) {
  const auto session = std::make_shared<HttpSession>(services_, std::move(socket), next_id_++, door_);
  sessions_.insert(session.get());
  // Undone by a destructor: an exception must not leave a pointer behind.
  struct Leaving {
    HttpListener& listener;
    HttpSession* session;
    ~Leaving() {
      listener.sessions_.erase(session);
      if (listener.door_ == Door::kEngine) --listener.services_.engine.gauges().connections;
      listener.services_.engine.notify();
    }
  } leaving{*this, session.get()};
  if (door_ == Door::kEngine) ++services_.engine.gauges().connections;
  services_.engine.notify();
  co_await session->run();
}

std::string printed(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

}  // namespace handoff::mock
