#include "sidecar/listener.hpp"

#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <stdexcept>
#include <utility>

#include "shared/telemetry/log.hpp"

namespace handoff::sidecar {
namespace {

constexpr milliseconds kPauseAfterError{100};

void must(error_code ec, const char* step, const std::string& address, std::uint16_t port) {
  if (!ec) return;
  throw std::runtime_error(std::string("cannot ") + step + " " + address + " port " + std::to_string(port) +
                           ": " + ec.message());
}

void bind_to(Acceptor& acceptor, const tcp::endpoint& endpoint, bool reuse_port, const std::string& address) {
  error_code ec;
  acceptor.open(endpoint.protocol(), ec);
  must(ec, "open a socket for", address, endpoint.port());
  acceptor.set_option(net::socket_base::reuse_address(true), ec);
  if (endpoint.address().is_v6()) acceptor.set_option(net::ip::v6_only(false), ec);
  if (reuse_port) {
    const int on = 1;
    (void)::setsockopt(acceptor.native_handle(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  }
  acceptor.bind(endpoint, ec);
  must(ec, "bind", address, endpoint.port());
}

net::ip::address parse_address(const std::string& address) {
  error_code ec;
  const auto ip = net::ip::make_address(address, ec);
  if (ec) throw std::runtime_error("cannot listen on '" + address + "': not an IP address");
  return ip;
}

}  // namespace

void require_free_port(const std::string& address, std::uint16_t port) {
  if (port == 0) return;
  net::io_context context;
  Acceptor probe(context);
  bind_to(probe, {parse_address(address), port}, /*reuse_port=*/false, address);
}

Acceptor open_listener(net::io_context& context, const std::string& address, std::uint16_t port) {
  error_code ec;
  const auto ip = parse_address(address);
  Acceptor acceptor(context);
  bind_to(acceptor, {ip, port}, /*reuse_port=*/true, address);
  acceptor.listen(4096, ec);
  must(ec, "listen on", address, port);
  acceptor.non_blocking(true, ec);
  return acceptor;
}

Listener::Listener(DeadlineQueue& deadlines, Acceptor acceptor, std::function<bool()> has_room,
                   std::function<void(Socket)> on_connection)
    : acceptor_(std::move(acceptor)),
      port_(acceptor_.local_endpoint().port()),
      has_room_(std::move(has_room)),
      on_connection_(std::move(on_connection)),
      room_(acceptor_.get_executor()),
      pause_(deadlines, [this] { room_.notify(); }) {}

Awaitable<> Listener::run() {
  while (acceptor_.is_open()) {
    if (!has_room_()) {
      if (const auto suppressed = full_.try_pass()) {
        telemetry::LogLine(telemetry::Level::warn, "connection_limit")
            .field("port", port_)
            .field("suppressed", *suppressed);
      }
      co_await room_.wait();
      continue;
    }
    auto [ec, socket] = co_await acceptor_.async_accept(net::as_tuple(kUseAwaitable));
    if (!ec) {
      on_connection_(std::move(socket));
    } else if (ec != net::error::operation_aborted && acceptor_.is_open()) {
      if (const auto suppressed = failures_.try_pass()) {
        telemetry::LogLine(telemetry::Level::warn, "accept_failed")
            .field("reason", ec.message())
            .field("suppressed", *suppressed);
      }
      pause_.arm(kPauseAfterError);  // out of descriptors, most likely: trying again at once would spin
      co_await room_.wait();
    }
  }
}

void Listener::close() {
  if (!acceptor_.is_open()) return;
  while (true) {  // what clients see as connected is served
    error_code ec;
    Socket socket(acceptor_.get_executor());
    acceptor_.accept(socket, ec);
    if (ec) break;
    on_connection_(std::move(socket));
  }
  error_code ignored;
  acceptor_.close(ignored);
  room_.notify();
}

}  // namespace handoff::sidecar
