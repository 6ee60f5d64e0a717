// One request to an engine and its reply.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/fair_turn.hpp"
#include "sidecar/http1/message_head.hpp"
#include "sidecar/http1/message_parser.hpp"
#include "sidecar/upstream_pool.hpp"

namespace handoff::sidecar {

/// Why a leg has no complete reply.
enum class LegFailure {
  none,
  name,  // the host's name could not be resolved
  connect,
  connect_timeout,
  read_timeout,
  deadline,
  reset,
  malformed,
  too_large,
  overloaded,
  cancelled,
  upload,  // the body's source failed: the client left or sent rubbish; its own error says which
};

std::string_view name_of(LegFailure failure);

/// Where a request body comes from while it is still arriving.
class BodySource {
 public:
  virtual ~BodySource() = default;
  /// Appends what has arrived, framed for the engine. Empty and not finished: nothing is there yet.
  virtual bool try_next(std::string& wire) = 0;  // false: the source failed
  virtual bool finished() const = 0;
  /// Suspends until more has arrived or the source failed.
  virtual Awaitable<> wait() = 0;
  virtual void cancel_wait() = 0;
};

/// The request as it goes on the wire. `head` ends with the empty line. Pieces are borrowed until the leg is
/// closed.
struct LegRequest {
  EngineAddress engine;
  std::string head;
  std::span<const std::string_view> body;
  BodySource* upload = nullptr;  // instead of body
  bool is_head = false;
  bool may_resend = false;             // sending it twice does no harm
  bool new_connection = false;         // not one that was kept
  milliseconds deadline{0};            // for all of it; zero: none
  std::function<void()> on_sent;       // called when all of it has been written
  std::function<void()> on_connected;  // called before anything is written, for each connection that is tried
};

/// What legs of one loop share.
struct LegContext {
  net::io_context& context;
  UpstreamPool& pool;
  std::span<char> scratch;  // one read; its content is gone at the next suspension
  http1::HeadLimits head_limits;
  milliseconds connect_timeout;
  milliseconds read_timeout;
  std::vector<std::string_view> pieces{};  // of one read's body; gone at the next suspension, like scratch
};

struct LegTimes {
  Clock::time_point started{}, sent{}, head{}, done{};
};

/// A conversation with an engine: open() sends the request and reads the reply's head, read() gives its body
/// piece by piece. Owned by an exchange; all on one loop. close() or destruction before the reply's end
/// closes the connection, which is what tells an engine to abort the request; after the end it goes back to
/// the pool.
class UpstreamLeg {
 public:
  UpstreamLeg(LegContext& context, LegRequest request);
  ~UpstreamLeg();
  UpstreamLeg(const UpstreamLeg&) = delete;
  UpstreamLeg& operator=(const UpstreamLeg&) = delete;

  /// Suspends until the final head is there. Retries once on a new connection if a kept one fails before any
  /// byte of the reply and the request may be sent again.
  Awaitable<LegFailure> open();

  struct Body {
    LegFailure failure = LegFailure::none;
    bool complete = false;
    std::span<const std::string_view> pieces;  // until the next suspension of the loop's thread in any leg
    std::string_view verbatim;  // the same as whole chunks, framing included, if that is how they came
  };
  /// Whether all of a reply of known length came together with its head.
  bool has_whole_reply() const {
    return parser_.is_complete() || (head_.content_length && carry_.size() >= *head_.content_length);
  }
  /// What came together with the head, without waiting. Once, after open().
  Body first();
  /// Instead of first(), if has_whole_reply(): all of the body. Says nothing of a malformed one but
  /// `failure`.
  std::string take_whole_reply(LegFailure& failure);
  /// Suspends until there is more.
  Awaitable<Body> read();

  /// Makes open() and read() end soon with `cancelled`. May be called from anywhere on the loop.
  void cancel();
  /// Frees the request and the text of the reply's head; its status stays. Only when no other try will be
  /// made.
  void let_go_of_heads();
  /// Makes a suspended read() return with nothing, so that its caller can look at what has changed. Without
  /// one, nothing happens: open() goes on.
  void nudge();
  /// Closes the connection now; only when neither open() nor read() is suspended.
  void close();

  const http1::ResponseHead& head() const { return head_; }
  const LegTimes& times() const { return times_; }
  std::uint64_t body_bytes() const { return body_bytes_; }
  bool request_sent() const { return any_sent_; }
  bool fully_sent() const { return times_.sent != Clock::time_point{} && !cut_short_; }
  bool reply_started() const { return reply_started_; }
  bool on_reused() const { return reused_; }
  /// Whether open() failed as the engine closed a kept connection just as it was used.
  bool lost_in_transit() const { return lost_in_transit_; }
  bool cancelled() const { return cancelled_; }

 private:
  class Wire;
  void begin_attempt(bool allow_kept);
  void watch_for_silence();
  void note_sent();
  Awaitable<LegFailure> connect();
  Awaitable<LegFailure> connect_one(const tcp::endpoint& endpoint, Socket& socket);
  bool try_send(std::size_t& sent);
  Awaitable<LegFailure> send(std::size_t sent);
  Awaitable<LegFailure> send_wire(std::span<iovec> pieces);
  Awaitable<LegFailure> send_upload();
  Awaitable<LegFailure> read_head();
  bool try_read_head();
  void take_head(std::string_view data);
  bool count_interim(std::size_t bytes);
  IoStatus try_receive(std::string_view carried);
  Awaitable<> wait_readable();
  Awaitable<bool> wait_writable();
  LegFailure interrupted() const;
  Body take_body(std::string_view data);
  Body finish_at_end(IoStatus end);
  void release();
  void on_deadline();

  LegContext& context_;
  LegRequest request_;
  std::unique_ptr<UpstreamConnection> connection_;
  http1::ResponseParser parser_;
  http1::ResponseHead head_;
  std::optional<LegFailure> head_end_;  // none: the final head is there
  std::string_view received_;           // what came last, behind what was carried; until the next suspension
  std::string carry_;                   // bytes read but not yet understood
  std::string first_bytes_;             // body bytes that came with the head
  LegTimes times_;
  std::optional<Deadline> overall_;
  Socket* connecting_ = nullptr;
  net::ip::basic_resolver<tcp, Executor>* resolving_ = nullptr;
  std::uint64_t body_bytes_ = 0;
  FairTurn turn_;
  std::size_t interim_bytes_ = 0;
  unsigned interim_heads_ = 0;
  bool any_sent_ = false;
  bool reply_started_ = false;
  bool reused_ = false;
  bool lost_in_transit_ = false;
  bool cancelled_ = false;
  bool reading_ = false;
  bool nudged_ = false;
  bool silent_too_long_ = false;
  bool past_deadline_ = false;
  bool sending_ = false;  // and waiting for room
  std::size_t in_flight_ = 0;
  bool cut_short_ = false;  // the engine answered before it had the whole request
};

}  // namespace handoff::sidecar
