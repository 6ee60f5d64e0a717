// One switch that ends a running exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace handoff::sidecar {

enum class CancelReason : std::uint8_t { none, client_gone, shutdown };

/// Owned by the session for one request. Whoever is suspended on behalf of the request sets a handler that
/// wakes it; handlers must not resume anything inline.
class CancelSource {
 public:
  CancelReason reason() const { return reason_; }
  bool cancelled() const { return reason_ != CancelReason::none; }
  void cancel(CancelReason reason) {
    if (cancelled()) return;
    reason_ = reason;
    if (handler_) handler_();
  }
  /// Replaces the handler; called at once if it is too late.
  void set_handler(std::function<void()> handler) {
    handler_ = std::move(handler);
    if (cancelled() && handler_) handler_();
  }
  void clear_handler() { handler_ = nullptr; }

 private:
  CancelReason reason_ = CancelReason::none;
  std::function<void()> handler_;
};

}  // namespace handoff::sidecar
