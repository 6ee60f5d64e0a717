// A byte stream to a peer: try first, wait only when the kernel says so.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "sidecar/net.hpp"
#include "sidecar/socket_poller.hpp"

namespace handoff::sidecar {

enum class IoStatus { ok, would_block, closed, failed };

struct IoResult {
  IoStatus status = IoStatus::ok;
  std::size_t size = 0;  // bytes moved; positive if ok
};

/// One connected socket. Reads and writes never block and never wait; the waits are the only suspension
/// points. A read or write that is known to find nothing makes no system call.
///
/// This is the seam for TLS: a second implementation of these calls over a TLS session fits the same contract
/// (a record layer also says "not now, wait for readable"), and nothing above this class knows what the bytes
/// were. Owned by one connection object, used on its loop's thread.
class Transport final : private SocketPoller::Watch {
 public:
  /// Takes the descriptor over from Asio.
  explicit Transport(Socket socket);
  ~Transport() override;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Reads what is there, up to buffer.size(). `closed`: the peer has finished sending.
  IoResult try_read(std::span<char> buffer);
  /// Writes as much as fits. May write less than asked for: check size.
  IoResult try_write(std::span<const iovec> pieces);
  IoResult try_write(const char* data, std::size_t size);

  /// Suspend until the next try may find something, or cancel_waits() was called; the caller knows whether it
  /// was. One waiter at a time, and only after a try would have blocked.
  Awaitable<> wait_readable() { return wait(/*for_read=*/true, /*for_write=*/false); }
  Awaitable<> wait_writable() { return wait(/*for_read=*/false, /*for_write=*/true); }
  Awaitable<> wait_either() { return wait(/*for_read=*/true, /*for_write=*/true); }
  /// Resumes the waiter, from the loop. The stream itself stays usable.
  void cancel_waits();

  /// Beside a waiter: calls `call` once per tell_when_readable(), from the loop, at the next sign of bytes or
  /// of the peer's end. For a transport that is known to be quiet. It may destroy the transport only if
  /// nobody waits on it.
  void on_readable(std::function<void()> call) { on_readable_ = std::move(call); }
  void tell_when_readable();
  void stop_telling();

  void close();
  /// Closes with RST: the peer must not take what it has for a complete message.
  void reset();
  void shutdown_send();

  /// Whether the peer closed or reset, whatever is still unread. One poll call, no data is touched.
  bool peer_has_closed() const;
  /// Bytes that were written and that the peer has not taken yet. Asks the kernel.
  std::size_t in_flight() const;
  /// Whether the connection is open and nothing on it is unread. Asks the kernel.
  bool is_quiet();
  /// The same, as far as the loop has been told: asks only when it may be otherwise.
  bool seems_quiet() { return !readable_ || is_quiet(); }
  /// The same at this moment: asks also when the loop has not looked at its sockets just now.
  bool is_quiet_now() { return (!readable_ && poller_.is_current()) || is_quiet(); }
  bool may_be_readable() const { return readable_; }
  bool is_open() const { return socket_ >= 0; }
  const Executor& executor() const { return executor_; }

 private:
  using Waiter = net::async_result<net::use_awaitable_t<Executor>, void()>::handler_type;

  Awaitable<> wait(bool for_read, bool for_write);
  IoResult written(ssize_t size, std::size_t wanted);
  void forget_waits();
  void on_change() override;
  void drop_waiter() override;

  Executor executor_;
  SocketPoller& poller_;
  int socket_ = -1;
  std::function<void()> on_readable_;
  std::optional<Waiter> waiter_;
  bool waits_for_read_ = false;
  bool waits_for_write_ = false;
  bool telling_ = false;
};

}  // namespace handoff::sidecar
