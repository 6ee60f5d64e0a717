// The client's side of an exchange: bytes in, bytes out, and the moment it leaves.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sidecar/deadline_queue.hpp"
#include "sidecar/signal.hpp"
#include "sidecar/transport.hpp"

namespace handoff::sidecar {

enum class ClientEvent { readable, timed_out, gone, stopped };

/// A client connection. One wait for readability is kept outstanding across an exchange: while we owe an
/// answer it tells that the client has left (its FIN counts as leaving, as with nginx), and afterwards it is
/// the wait for the next request, so watching costs nothing.
///
/// Owned by its session; used on one loop.
class ClientConnection {
 public:
  ClientConnection(DeadlineQueue& deadlines, Socket socket, milliseconds write_timeout);

  /// Received bytes that no parser has taken yet.
  std::string inbox;

  /// Suspends until bytes can be read, for at most `limit`.
  Awaitable<ClientEvent> wait_for_bytes(milliseconds limit);
  IoResult try_read(std::span<char> buffer) { return transport_.try_read(buffer); }
  const Executor& executor() const { return transport_.executor(); }

  /// From now until unwatch(), calls `on_gone` once if the client leaves.
  void watch(std::function<void()> on_gone);
  void unwatch();
  bool gone() const { return gone_; }

  /// Sends what fits and keeps a copy of the rest. True if everything went out; false: call flush(), which
  /// tells whether there is still a client.
  bool try_send(std::span<const iovec> pieces);
  bool try_send(std::string_view bytes);
  /// Suspends until what was kept has gone out. False: the client is gone or does not read for too long.
  Awaitable<bool> flush();
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  std::size_t unsent() const { return unsent_.size() - unsent_at_; }

  /// Ends a wait for bytes once, with whatever the state is then.
  void interrupt() {
    if (waiting_) readable_.notify();
  }
  /// Ends a wait for bytes with `stopped`; later ones too, until resume().
  void stop();
  void resume() { stopped_ = false; }
  /// Whether the client has sent something, its FIN included, that nobody has read.
  bool has_unread() { return !inbox.empty() || !transport_.is_quiet(); }
  /// Drops waiting writes and marks the client as gone.
  void abandon();
  void close() { transport_.close(); }
  void reset() { transport_.reset(); }
  void finish_sending() { transport_.shutdown_send(); }
  bool is_open() const { return transport_.is_open(); }
  /// Closes so that an unread request does not destroy the answer: stop sending, then read what comes for a
  /// while.
  Awaitable<> linger_and_close(std::span<char> scratch);

 private:
  void on_readable();
  void check_for_departure();
  void leave();

  Transport transport_;
  milliseconds write_timeout_;
  Signal readable_;
  Deadline deadline_;
  std::optional<Deadline> departure_poll_;
  std::function<void()> on_gone_;
  std::string unsent_;
  std::size_t unsent_at_ = 0;
  std::uint64_t bytes_sent_ = 0;
  bool waiting_ = false;
  bool timed_out_ = false;
  bool stopped_ = false;
  bool gone_ = false;
};

}  // namespace handoff::sidecar
