// The client's answer: whoever makes it, it leaves through here, and only once.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sidecar/client_connection.hpp"
#include "sidecar/http1/message_head.hpp"
#include "sidecar/sidecar_error.hpp"
#include "sidecar/upstream_leg.hpp"

namespace handoff::sidecar {

/// A complete answer of the sidecar's own.
struct Answer {
  unsigned status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

/// The OpenAI-shaped answer for an error.
Answer error_answer(SidecarError error);
Answer error_answer(SidecarError error, unsigned status, std::string_view message,
                    std::optional<std::string_view> param = std::nullopt);

enum class RelayEnd { complete, client_gone, engine_failed };

/// Writes one answer to one client. Knows how much of it has gone out, and so what may still be said: before
/// the first byte anything, afterwards only the rest or a visible break. Forwards what one read brought in
/// one write, and reads no further while the client is behind. Owned by the exchange; one loop.
class ResponseRelay {
 public:
  /// `close_after`: the connection can't be used again, whatever the answer.
  ResponseRelay(ClientConnection& client, const http1::RequestHead& request, bool& draining);

  bool started() const { return started_; }
  bool complete() const { return complete_; }
  bool keep_alive() const { return keep_alive_ && complete_; }
  unsigned status() const { return status_; }
  /// The answer will not allow another request: part of this one is unread.
  void forbid_keep_alive() { keep_alive_ = false; }

  /// Sends an answer of our own. Only when nothing has been sent.
  Awaitable<RelayEnd> send(const Answer& answer);

  /// Sends a reply whose head has been read: first `held`, body bytes that were kept back, then what the leg
  /// brings. `held_is_all`: the leg has ended already.
  Awaitable<RelayEnd> relay(UpstreamLeg& leg, std::string_view held, bool held_is_all);
  /// Why relay() ended with engine_failed.
  LegFailure failure() const { return failure_; }

  /// Called once, when the first bytes of a relayed reply have gone out: nothing that was kept for another
  /// try is needed any more.
  void on_flowing(std::function<void()> call) { on_flowing_ = std::move(call); }

  /// An answer in pieces, its length unknown.
  Awaitable<RelayEnd> begin(const Answer& head);
  Awaitable<RelayEnd> write(std::span<const std::string_view> pieces, bool last);

  /// Ends a begun answer so that nobody takes it for complete. The connection is left to be closed.
  void break_off();

 private:
  enum class Framing { none, fixed, chunked, until_close };
  void start(const http1::ResponseHead& head);
  void start(const Answer& answer, bool length_known);
  void end_head();
  /// `verbatim`: the same pieces as whole chunks, framing included, or empty.
  bool forward(std::span<const std::string_view> pieces, bool last, std::string_view verbatim = {});
  Awaitable<RelayEnd> flushed(bool sent);

  ClientConnection& client_;
  const http1::RequestHead& request_;
  bool& draining_;
  std::string head_;  // not yet sent
  boost::container::small_vector<iovec, 4> wire_;
  std::string framing_bytes_;
  Framing framing_ = Framing::none;
  bool started_ = false;
  bool complete_ = false;
  bool keep_alive_;
  unsigned status_ = 0;
  LegFailure failure_ = LegFailure::none;
  std::function<void()> on_flowing_;
};

}  // namespace handoff::sidecar
