// A byte stream to a peer: try first, wait only when the kernel says so.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "sidecar/net.hpp"

namespace handoff::sidecar {

enum class IoStatus { ok, would_block, closed, failed };

struct IoResult {
  IoStatus status = IoStatus::ok;
  std::size_t size = 0;  // bytes moved; positive if ok
};

/// One connected socket. Reads and writes never block and never wait; the two waits are the only suspension
/// points.
///
/// This is the seam for TLS: a second implementation of these calls over a TLS session fits the same contract
/// (a record layer also says "not now, wait for readable"), and nothing above this class knows what the bytes
/// were. Owned by one connection object, used on its loop's thread.
class Transport {
 public:
  explicit Transport(Socket socket);

  /// Reads what is there, up to buffer.size(). `closed`: the peer has finished sending.
  IoResult try_read(std::span<char> buffer);
  /// Writes as much as fits. May write less than asked for: check size.
  IoResult try_write(std::span<const iovec> pieces);
  IoResult try_write(const char* data, std::size_t size);

  /// Suspends until the socket is readable (or writable), or cancel_waits() was called. False: cancelled or
  /// failed.
  Awaitable<bool> wait_readable();
  Awaitable<bool> wait_writable();
  /// Suspends until either direction is ready. Costs more than the others; for uploads that might be answered
  /// early.
  Awaitable<bool> wait_either();

  /// Ends pending waits with false. The stream itself stays usable.
  void cancel_waits();
  void close();
  /// Closes with RST: the peer must not take what it has for a complete message.
  void reset();
  void shutdown_send();

  /// Whether the peer closed or reset, whatever is still unread. One poll call, no data is touched.
  bool peer_has_closed() const;
  /// Whether an idle connection is fit for another request: open, and nothing unread on it.
  bool is_quiet() const;
  bool is_open() const { return socket_.is_open(); }
  Socket& socket() { return socket_; }

 private:
  Socket socket_;
};

}  // namespace handoff::sidecar
