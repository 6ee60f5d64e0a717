#include "sidecar/upstream_leg.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/basic_resolver.hpp>
#include <cstring>
#include <utility>
#include "sidecar/give_memory_back.hpp"

namespace handoff::sidecar {
namespace {

constexpr auto kTuple = net::as_tuple(kUseAwaitable);

}  // namespace

std::string_view name_of(LegFailure failure) {
  switch (failure) {
    case LegFailure::none:
      return "none";
    case LegFailure::name:
      return "name";
    case LegFailure::connect:
      return "connect";
    case LegFailure::connect_timeout:
      return "connect_timeout";
    case LegFailure::read_timeout:
      return "read_timeout";
    case LegFailure::deadline:
      return "deadline";
    case LegFailure::reset:
      return "reset";
    case LegFailure::malformed:
      return "malformed";
    case LegFailure::too_large:
      return "too_large";
    case LegFailure::overloaded:
      return "overloaded";
    case LegFailure::cancelled:
      return "cancelled";
    case LegFailure::upload:
      return "upload";
  }
  return "unknown";
}

UpstreamLeg::UpstreamLeg(LegContext& context, LegRequest request)
    : context_(context), request_(std::move(request)), parser_(request_.is_head) {}

UpstreamLeg::~UpstreamLeg() = default;

void UpstreamLeg::cancel() {
  cancelled_ = true;
  if (connecting_ != nullptr) {
    error_code ignored;
    connecting_->cancel(ignored);
  }
  if (resolving_ != nullptr) resolving_->cancel();
  if (request_.upload != nullptr) request_.upload->cancel_wait();
  if (connection_) connection_->transport.cancel_waits();
}

void UpstreamLeg::let_go_of_heads() {
  give_memory_back(request_.head);
  request_.body = {};
  give_memory_back(first_bytes_);
  head_.forget_text();
}

void UpstreamLeg::nudge() {
  if (!reading_) return;
  nudged_ = true;
  if (connection_) connection_->transport.cancel_waits();
}

void UpstreamLeg::close() {
  connection_.reset();
  overall_.reset();
}

void UpstreamLeg::on_deadline() {
  past_deadline_ = true;
  if (connecting_ != nullptr) {
    error_code ignored;
    connecting_->cancel(ignored);
  }
  if (resolving_ != nullptr) resolving_->cancel();
  if (connection_) connection_->transport.cancel_waits();
}

LegFailure UpstreamLeg::interrupted() const {
  if (cancelled_) return LegFailure::cancelled;
  if (past_deadline_) return LegFailure::deadline;
  if (silent_too_long_) return LegFailure::read_timeout;
  return LegFailure::none;
}

Awaitable<LegFailure> UpstreamLeg::open() {
  times_.started = Clock::now();
  if (request_.deadline.count() > 0) {
    overall_.emplace(context_.pool.deadlines(), [this] { on_deadline(); });
    overall_->arm(request_.deadline);
  }
  for (bool allow_kept = !request_.new_connection;; allow_kept = false) {
    begin_attempt(allow_kept);
    auto failure = cancelled_ ? LegFailure::cancelled : LegFailure::none;
    if (failure == LegFailure::none && !connection_) {
      failure = co_await connect();
      if (failure == LegFailure::none) failure = interrupted();
    }
    if (failure == LegFailure::none) {
      if (request_.on_connected) request_.on_connected();
      watch_for_silence();
      std::size_t sent = 0;
      if (!try_send(sent)) failure = co_await send(sent);
      if (failure == LegFailure::none) note_sent();
    }
    if (failure == LegFailure::none) failure = co_await read_head();
    if (failure == LegFailure::none) co_return failure;
    // The engine closed a kept connection just as we used it. Nothing was answered, and sending again does no
    // harm.
    lost_in_transit_ = failure == LegFailure::reset && reused_ && !reply_started_;
    if (lost_in_transit_) context_.pool.forget(request_.engine);
    if (!allow_kept || !lost_in_transit_ || !request_.may_resend || request_.upload != nullptr) {
      close();
      co_return failure;
    }
  }
}

void UpstreamLeg::begin_attempt(bool allow_kept) {
  connection_.reset();
  reused_ = false;
  lost_in_transit_ = false;
  cut_short_ = false;
  times_.sent = {};
  carry_.clear();
  parser_.reset();
  head_end_.reset();
  interim_bytes_ = 0;
  interim_heads_ = 0;
  if (allow_kept && !cancelled_) connection_ = context_.pool.take(request_.engine);
  reused_ = connection_ != nullptr;
}

void UpstreamLeg::watch_for_silence() {
  connection_->on_deadline = [this] {
    // A socket is called writable when a third of its buffer is free: an engine that takes less is slow only.
    const auto in_flight = sending_ ? connection_->transport.in_flight() : 0;
    if (sending_ && in_flight < in_flight_) {
      in_flight_ = in_flight;
      connection_->deadline.arm(context_.read_timeout);
      return;
    }
    silent_too_long_ = true;
    connection_->transport.cancel_waits();
  };
}

void UpstreamLeg::note_sent() {
  times_.sent = Clock::now();
  if (request_.on_sent) request_.on_sent();
}

Awaitable<LegFailure> UpstreamLeg::connect() {
  const auto& engine = request_.engine;
  bool timed_out = false;
  Deadline limit(context_.pool.deadlines(), [&] {
    timed_out = true;
    error_code ignored;
    if (connecting_ != nullptr) connecting_->cancel(ignored);
    if (resolving_ != nullptr) resolving_->cancel();
  });
  limit.arm(context_.connect_timeout);

  std::vector<tcp::endpoint> endpoints;
  bool has_no_address = false;
  error_code not_literal;
  const auto literal = net::ip::make_address(engine.host, not_literal);
  if (!not_literal) {
    endpoints.emplace_back(literal, engine.port);
  } else if (engine.host == "localhost") {  // always the loopback (RFC 6761, 6.3): no name service is asked
    endpoints.emplace_back(net::ip::address_v4::loopback(), engine.port);
    endpoints.emplace_back(net::ip::address_v6::loopback(), engine.port);
  } else {
    net::ip::basic_resolver<tcp, Executor> resolver(context_.context);
    resolving_ = &resolver;
    const auto service = std::to_string(engine.port);
    auto [ec, found] = co_await resolver.async_resolve(engine.host, service, kTuple);
    resolving_ = nullptr;
    has_no_address = static_cast<bool>(ec);
    if (!ec) {
      for (const auto& entry : found) endpoints.push_back(entry.endpoint());
    }
  }
  for (const auto& endpoint : endpoints) {
    if (timed_out || interrupted() != LegFailure::none) break;
    Socket socket(context_.context);
    const auto failure = co_await connect_one(endpoint, socket);
    if (failure == LegFailure::overloaded) co_return failure;
    if (failure != LegFailure::none) continue;
    connection_ =
        std::make_unique<UpstreamConnection>(context_.pool.deadlines(), std::move(socket), engine.authority);
    co_return LegFailure::none;
  }
  if (const auto why = interrupted(); why != LegFailure::none) co_return why;
  if (timed_out) co_return LegFailure::connect_timeout;
  co_return has_no_address ? LegFailure::name : LegFailure::connect;
}

Awaitable<LegFailure> UpstreamLeg::connect_one(const tcp::endpoint& endpoint, Socket& socket) {
  connecting_ = &socket;
  auto [ec] = co_await socket.async_connect(endpoint, kTuple);
  connecting_ = nullptr;
  if (!ec) co_return LegFailure::none;
  const bool is_our_fault = ec == net::error::no_descriptors || ec.value() == ENFILE;
  co_return is_our_fault ? LegFailure::overloaded : LegFailure::connect;
}

// Into the loop's scratch, behind what was carried over.
IoStatus UpstreamLeg::try_receive(std::string_view carried) {
  const auto scratch = context_.scratch;
  if (!carried.empty()) std::memcpy(scratch.data(), carried.data(), carried.size());
  const auto got = connection_->transport.try_read(scratch.subspan(carried.size()));
  received_ = {scratch.data(), carried.size() + got.size};
  return got.status;
}

Awaitable<> UpstreamLeg::wait_readable() {
  connection_->deadline.arm(context_.read_timeout);
  return connection_->transport.wait_readable();
}

Awaitable<bool> UpstreamLeg::wait_writable() {
  if (interrupted() != LegFailure::none) co_return false;
  in_flight_ = connection_->transport.in_flight();
  sending_ = true;
  connection_->deadline.arm(context_.read_timeout);
  // An engine may answer before it has taken the whole body (413, say), and then stop reading.
  co_await connection_->transport.wait_either();
  sending_ = false;
  if (connection_) connection_->deadline.disarm();
  co_return interrupted() == LegFailure::none;
}

Awaitable<LegFailure> UpstreamLeg::send_wire(std::span<iovec> pieces) {
  std::size_t at = 0;
  while (at < pieces.size()) {
    const auto written = connection_->transport.try_write(pieces.subspan(at));
    if (written.status == IoStatus::ok) {
      any_sent_ = true;
      auto left = written.size;
      while (at < pieces.size() && left >= pieces[at].iov_len) left -= pieces[at++].iov_len;
      if (at < pieces.size()) {
        pieces[at].iov_base = static_cast<char*>(pieces[at].iov_base) + left;
        pieces[at].iov_len -= left;
      }
    } else if (written.status == IoStatus::would_block) {
      // An answer, or the end of the connection, is reason to stop; an interim response (RFC 9110, 15.2) is
      // not.
      if (!try_read_head()) {
        const bool ready = co_await wait_writable();
        if (!ready) {
          const auto why = interrupted();
          co_return why == LegFailure::none ? LegFailure::reset : why;
        }
        if (!try_read_head()) continue;
      }
      cut_short_ = true;
      co_return LegFailure::none;
    } else {
      // The peer has closed its side. It may have said why before: reading the head tells.
      if (connection_->transport.is_quiet()) co_return LegFailure::reset;
      cut_short_ = true;
      co_return LegFailure::none;
    }
  }
  co_return LegFailure::none;
}

// Head and body as the kernel takes them.
class UpstreamLeg::Wire {
 public:
  Wire(std::string& head, std::span<const std::string_view> body) {
    if (body.size() >= few_.size()) many_.resize(1 + body.size());
    const std::span<iovec> room = many_.empty() ? std::span<iovec>(few_) : std::span<iovec>(many_);
    std::size_t used = 0;
    room[used++] = {head.data(), head.size()};
    for (const auto piece : body) {
      if (!piece.empty()) room[used++] = {const_cast<char*>(piece.data()), piece.size()};
    }
    pieces_ = room.first(used);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  std::span<iovec> pieces() const { return pieces_; }
  void drop_front(std::size_t bytes) {
    while (!pieces_.empty() && bytes >= pieces_.front().iov_len) {
      bytes -= pieces_.front().iov_len;
      pieces_ = pieces_.subspan(1);
    }
    if (pieces_.empty()) return;
    pieces_.front().iov_base = static_cast<char*>(pieces_.front().iov_base) + bytes;
    pieces_.front().iov_len -= bytes;
  }

 private:
  std::array<iovec, 8> few_;  // head, and the pieces of an edited body
  std::vector<iovec> many_;
  std::span<iovec> pieces_;
};

// Most requests fit into the socket's buffer, and then no coroutine is needed.
bool UpstreamLeg::try_send(std::size_t& sent) {
  Wire wire(request_.head, request_.body);
  const auto written = connection_->transport.try_write(wire.pieces());
  if (written.status != IoStatus::ok) return false;
  any_sent_ = true;
  sent = written.size;
  wire.drop_front(sent);
  return wire.pieces().empty() && request_.upload == nullptr;
}

// What is behind the first `sent` bytes.
Awaitable<LegFailure> UpstreamLeg::send(std::size_t sent) {
  Wire wire(request_.head, request_.body);
  wire.drop_front(sent);
  const auto pieces = wire.pieces();
  auto failure = co_await send_wire(pieces);
  if (failure == LegFailure::none && request_.upload != nullptr && !cut_short_)
    failure = co_await send_upload();
  co_return failure;
}

Awaitable<LegFailure> UpstreamLeg::send_upload() {
  auto& upload = *request_.upload;
  const Executor executor = context_.context.get_executor();
  std::string wire;
  while (!upload.finished()) {
    wire.clear();
    if (!upload.try_next(wire)) co_return LegFailure::upload;
    if (wire.empty()) {
      if (upload.finished()) break;
      if (try_read_head()) {
        cut_short_ = true;
        co_return LegFailure::none;
      }
      co_await upload.wait();
      if (const auto why = interrupted(); why != LegFailure::none) co_return why;
      continue;
    }
    iovec piece{wire.data(), wire.size()};
    const std::span<iovec> pieces(&piece, 1);
    const auto failure = co_await send_wire(pieces);
    if (failure != LegFailure::none || cut_short_) co_return failure;
    if (turn_.is_over()) {
      co_await let_others_run(executor);
      if (const auto why = interrupted(); why != LegFailure::none) co_return why;
    }
  }
  co_return LegFailure::none;
}

Awaitable<LegFailure> UpstreamLeg::read_head() {
  while (true) {
    if (const auto why = interrupted(); why != LegFailure::none) co_return why;
    if (try_read_head()) co_return *head_end_;
    co_await wait_readable();
    connection_->deadline.disarm();
  }
}

// Interim responses are read and skipped. True: how it ends is known; false: not all has come.
bool UpstreamLeg::try_read_head() {
  while (!head_end_) {
    const auto status = try_receive({});
    if (status == IoStatus::would_block) return false;
    if (status == IoStatus::ok) {
      reply_started_ = true;
      take_head(received_);
    } else {
      head_end_ = LegFailure::reset;
    }
  }
  return true;
}

void UpstreamLeg::take_head(std::string_view data) {
  if (!carry_.empty()) {
    carry_.append(data);
    data = carry_;
  }
  while (true) {
    const auto parsed = parser_.parse_head(data, context_.head_limits, head_);
    if (parsed.status == http1::HeadStatus::need_more) {
      if (data.data() != carry_.data()) carry_ = std::string(data);  // may be a part of what is carried
      return;
    }
    // Upgrades were never asked for, so 101 is as wrong as broken syntax.
    if (parsed.status != http1::HeadStatus::complete || head_.status == 101 || head_.status < 100) {
      const bool too_large = parsed.status == http1::HeadStatus::too_large ||
                             parsed.status == http1::HeadStatus::too_many_fields;
      head_end_ = too_large ? LegFailure::too_large : LegFailure::malformed;
      return;
    }
    data.remove_prefix(parsed.consumed);
    if (head_.status < 200 && !count_interim(parsed.consumed)) {
      head_end_ = LegFailure::too_large;
      return;
    }
    if (head_.status >= 200) {
      times_.head = Clock::now();
      carry_ = std::string(data);  // kept apart from scratch, which other legs use
      head_end_ = LegFailure::none;
      return;
    }
    parser_.reset();  // an interim response; the real one follows
    if (data.empty()) return carry_.clear();
  }
}

// An engine has nothing to say with many of them, and each one puts off the read time-out.
bool UpstreamLeg::count_interim(std::size_t bytes) {
  constexpr unsigned kMostInterimHeads = 16;
  interim_bytes_ += bytes;
  return ++interim_heads_ <= kMostInterimHeads && interim_bytes_ <= context_.head_limits.bytes;
}

UpstreamLeg::Body UpstreamLeg::first() {
  if (!connection_) return {LegFailure::none, true, {}, {}};
  if (parser_.is_complete()) {
    release();
    return {LegFailure::none, true, {}, {}};
  }
  if (carry_.empty()) return {};
  // first() is called right after open(), but the loop may have served others in between: the bytes are our
  // own.
  std::string data = std::move(carry_);
  carry_.clear();
  first_bytes_ = std::move(data);
  return take_body(first_bytes_);
}

std::string UpstreamLeg::take_whole_reply(LegFailure& failure) {
  const auto body = first();
  failure = body.failure;
  if (body.pieces.size() == 1 && body.pieces.front().size() == first_bytes_.size())
    return std::move(first_bytes_);
  std::string out;
  for (const auto piece : body.pieces) out.append(piece);
  return out;
}

Awaitable<UpstreamLeg::Body> UpstreamLeg::read() {
  const Executor executor = context_.context.get_executor();
  while (true) {
    if (const auto why = interrupted(); why != LegFailure::none) {
      close();
      co_return Body{why, false, {}, {}};
    }
    const bool others_first = turn_.is_over();
    const auto status = others_first ? IoStatus::would_block : try_receive(carry_);
    if (status == IoStatus::would_block) {
      reading_ = true;
      if (others_first) {
        co_await let_others_run(executor);
      } else {
        co_await wait_readable();
        connection_->deadline.disarm();
      }
      reading_ = false;
      if (std::exchange(nudged_, false) && interrupted() == LegFailure::none) co_return Body{};
      continue;
    }
    if (status != IoStatus::ok) co_return finish_at_end(status);
    const auto body = take_body(received_);
    if (body.failure == LegFailure::none && !body.complete && body.pieces.empty()) continue;  // framing only
    co_return body;
  }
}

UpstreamLeg::Body UpstreamLeg::take_body(std::string_view data) {
  auto& pieces = context_.pieces;
  pieces.clear();
  const auto parsed = parser_.parse_body(data, pieces);
  for (const auto piece : pieces) body_bytes_ += piece.size();
  if (parsed.status == http1::BodyStatus::malformed) {
    close();
    return {LegFailure::malformed, false, pieces, {}};
  }
  carry_.assign(data.substr(parsed.consumed));
  if (parsed.status == http1::BodyStatus::complete) {
    release();
    return {LegFailure::none, true, pieces, {}};
  }
  return {LegFailure::none, false, pieces,
          parsed.verbatim ? data.substr(0, parsed.consumed) : std::string_view{}};
}

// A body may end with its connection, but only in order: after a reset nobody knows what is missing.
UpstreamLeg::Body UpstreamLeg::finish_at_end(IoStatus end) {
  const bool complete = end == IoStatus::closed && parser_.parse_end() == http1::BodyStatus::complete;
  close();
  times_.done = Clock::now();
  if (complete) return {LegFailure::none, true, {}, {}};
  return {LegFailure::reset, false, {}, {}};
}

void UpstreamLeg::release() {
  times_.done = Clock::now();
  overall_.reset();
  // Bytes behind the reply, or a request that was answered before it was sent: the connection's state is
  // unknown.
  const bool clean = carry_.empty() && head_.keep_alive && fully_sent();
  connection_->deadline.disarm();
  connection_->on_deadline = nullptr;
  if (clean) context_.pool.give_back(std::move(connection_));
  connection_.reset();
}

}  // namespace handoff::sidecar
