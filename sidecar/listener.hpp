// Accepts client connections for one loop.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "shared/telemetry/rate_limited_warning.hpp"
#include "sidecar/deadline_queue.hpp"
#include "sidecar/net.hpp"
#include "sidecar/signal.hpp"

namespace handoff::sidecar {

using Acceptor = net::basic_socket_acceptor<tcp, Executor>;

/// Throws if another process listens on the port: SO_REUSEPORT, which our own listeners need among
/// themselves, would let two sidecars of one user share it unnoticed.
void require_free_port(const std::string& address, std::uint16_t port);

/// Binds and listens. With port 0 the system chooses. Each loop has a listener of its own on the same port
/// (SO_REUSEPORT), and the kernel spreads connections over them. Throws std::runtime_error, which names
/// address and reason.
Acceptor open_listener(net::io_context& context, const std::string& address, std::uint16_t port);

/// The accept loop. `on_connection` takes each socket; while `has_room` says no, connections wait in the
/// backlog. Owned by the loop.
class Listener {
 public:
  Listener(DeadlineQueue& deadlines, Acceptor acceptor, std::function<bool()> has_room,
           std::function<void(Socket)> on_connection);

  std::uint16_t port() const { return port_; }
  Awaitable<> run();
  /// Tells a full listener that a connection has ended.
  void room_again() { room_.notify(); }
  /// Takes what is already in the backlog, then closes.
  void close();

 private:
  Acceptor acceptor_;
  std::uint16_t port_;
  std::function<bool()> has_room_;
  std::function<void(Socket)> on_connection_;
  Signal room_;
  Deadline pause_;
  telemetry::RateLimitedWarning failures_{std::chrono::minutes(1)};
  telemetry::RateLimitedWarning full_{std::chrono::minutes(1)};
};

}  // namespace handoff::sidecar
