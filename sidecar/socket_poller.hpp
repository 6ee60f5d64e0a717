// Which sockets of a loop can be read or written, told by edges.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/intrusive/list.hpp>
#include <cstddef>
#include <span>

#include "sidecar/net.hpp"

namespace handoff::sidecar {

/// The sockets of one io_context in an epoll set of their own, which the io_context watches as one more
/// descriptor. Each socket is registered once, for edges, and its Watch remembers what the last edges said.
/// A short read or write therefore settles that there is no more, where Asio's own sockets ask the kernel
/// again after every read and re-register for every wait: two system calls of six for a request.
///
/// A service of the io_context, found with use_service(); used on its loop's thread only. Keeps the
/// io_context running only while somebody waits.
class SocketPoller final : public net::execution_context::service {
 public:
  /// What is known of one socket. It starts as "may be": trying tells.
  class Watch : public boost::intrusive::list_base_hook<> {
   public:
    virtual ~Watch() = default;
    bool readable() const { return readable_; }
    bool writable() const { return writable_; }

   protected:
    bool readable_ = true;
    bool writable_ = true;
    bool hung_up_ = false;  // the end of input, or an error, is behind what is unread

   private:
    friend class SocketPoller;
    /// Something has changed. Called from the loop itself; the watch may be destroyed by it.
    virtual void on_change() = 0;
    /// The io_context goes: whoever waits is destroyed instead of being resumed.
    virtual void drop_waiter() = 0;
  };

  using key_type = SocketPoller;
  static net::execution_context::id id;
  explicit SocketPoller(net::io_context& context);
  ~SocketPoller() override = default;

  /// False: out of memory or descriptors. The socket must be removed before it is closed.
  bool add(int socket, Watch& watch);
  void remove(int socket, Watch& watch);

  /// Counts those who wait for an edge.
  void begin_wait();
  void end_wait();
  /// Whether the watches have been told just now of all there was to tell. A loop that was busy or stopped,
  /// or where nobody waited, may have edges that nobody has looked at.
  bool is_current() const;

 private:
  void shutdown() override;
  void arm();
  void dispatch();

  net::posix::basic_stream_descriptor<Executor> set_;
  boost::intrusive::list<Watch> watches_;
  std::array<epoll_event, 128> events_;
  std::span<epoll_event> batch_;  // being dispatched
  Clock::time_point told_at_{};
  bool told_all_ = false;
  std::size_t waits_ = 0;
  bool armed_ = false;  // a wait for the set is outstanding, or its handler has not run yet
};

}  // namespace handoff::sidecar
