// The running sidecar: its loops, and how it stops.
#pragma once

#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sidecar/event_loop.hpp"

namespace handoff::sidecar {

/// Owns the loops. run() returns after a signal and an orderly stop:
///   SIGTERM, SIGINT or SIGHUP -> /ready says 503, work is still accepted for the drain delay -> listeners
///   close, what is in flight goes on for the drain timeout -> the rest is cancelled -> background calls end.
///   A second signal skips the waiting.
class Sidecar {
 public:
  /// Binds all ports. Throws std::runtime_error with one line that says what is wrong.
  Sidecar(const SharedPlan& plan, std::span<const std::string> backend_values);

  std::uint16_t port() const { return port_; }
  std::uint16_t admin_port() const { return admin_port_; }

  void run();

 private:
  Awaitable<> stop_after_signal();
  Awaitable<bool> pause(milliseconds time);
  template <class Condition>
  Awaitable<> wait_until(Condition condition, milliseconds limit);
  void log_totals() const;

  const SharedPlan& plan_;
  Readiness readiness_;
  net::io_context control_{1};
  net::signal_set signals_{control_, SIGTERM, SIGINT};  // caught from the first log line on
  SteadyTimer timer_{control_};
  bool hurry_ = false;  // a second signal came
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::uint16_t port_ = 0;
  std::uint16_t admin_port_ = 0;
};

}  // namespace handoff::sidecar
