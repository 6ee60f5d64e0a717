#include "sidecar/upstream_leg.hpp"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/basic_resolver.hpp>
#include <cstring>
#include <utility>
#include "sidecar/give_memory_back.hpp"

namespace handoff::sidecar {
namespace {

constexpr auto kTuple = net::as_tuple(kUseAwaitable);
constexpr std::size_t kLargeNear = 4096;  // a reply with a handoff of some hundred blocks

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
  request_.reply_is_whole = false;
  large_near_.reset();
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
  auto failure = co_await attempt(/*allow_kept=*/true);
  if (failure == LegFailure::reset && reused_ && !reply_started_ && request_.may_resend &&
      request_.upload == nullptr) {
    // The engine closed a kept connection just as we used it. Nothing was answered, and sending again does no
    // harm.
    failure = co_await attempt(/*allow_kept=*/false);
  }
  if (failure != LegFailure::none) close();
  co_return failure;
}

Awaitable<LegFailure> UpstreamLeg::attempt(bool allow_kept) {
  connection_.reset();
  reused_ = false;
  cut_short_ = false;
  times_.sent = {};
  carry_.clear();
  parser_.reset();
  if (cancelled_) co_return LegFailure::cancelled;
  if (allow_kept) connection_ = context_.pool.take(request_.engine);
  if (connection_) {
    reused_ = true;
  } else {
    const auto failure = co_await connect();
    if (failure != LegFailure::none) co_return failure;
    if (const auto why = interrupted(); why != LegFailure::none) co_return why;
  }
  connection_->on_deadline = [this] {
    silent_too_long_ = true;
    connection_->transport.cancel_waits();
  };
  const auto failure = co_await send();
  if (failure != LegFailure::none) co_return failure;
  co_return co_await read_head();
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
  co_return ec ? LegFailure::connect : LegFailure::none;
}

// The first bytes land in a small buffer of the leg's own, so that a stream that waits holds little. What was
// carried over, or comes with them and does not fit, makes a detour over the loop's scratch.
bool UpstreamLeg::begin_receive() {
  if (interrupted() != LegFailure::none) return false;  // it came while nobody waited here
  connection_->deadline.arm(context_.read_timeout);
  return true;
}

IoStatus UpstreamLeg::end_receive(error_code ec, std::size_t size, std::string_view carried) {
  received_ = {};
  read_was_full_ = false;
  if (!connection_) return IoStatus::failed;
  connection_->deadline.disarm();
  if (interrupted() != LegFailure::none) return IoStatus::failed;
  if (ec == net::error::operation_aborted) return IoStatus::would_block;
  if (ec) return ec == net::error::eof ? IoStatus::closed : IoStatus::failed;
  const auto near = near_room();
  if (size < near.size() && carried.empty()) {
    received_ = {near.data(), size};
    return IoStatus::ok;
  }
  const auto scratch = context_.scratch;
  if (!carried.empty()) std::memcpy(scratch.data(), carried.data(), carried.size());
  std::memcpy(scratch.data() + carried.size(), near.data(), size);
  auto total = carried.size() + size;
  if (size == near.size()) {
    const auto rest = connection_->transport.try_read(scratch.subspan(total));
    total += rest.size;
    read_was_full_ = total == scratch.size();
  }
  received_ = {scratch.data(), total};
  return IoStatus::ok;
}

std::span<char> UpstreamLeg::near_room() {
  if (!request_.reply_is_whole) return near_;
  if (!large_near_) large_near_ = std::make_unique_for_overwrite<char[]>(kLargeNear);
  return {large_near_.get(), kLargeNear};
}

Awaitable<IoStatus> UpstreamLeg::receive() {
  if (!begin_receive()) co_return IoStatus::failed;
  const auto [ec, size] = co_await connection_->transport.receive(near_room());
  co_return end_receive(ec, size, {});
}

Awaitable<bool> UpstreamLeg::wait_writable() {
  if (interrupted() != LegFailure::none) co_return false;
  connection_->deadline.arm(context_.read_timeout);
  // An engine may answer before it has taken the whole body (413, say), and then stop reading.
  const bool ready = co_await connection_->transport.wait_either();
  if (connection_) connection_->deadline.disarm();
  co_return ready&& interrupted() == LegFailure::none;
}

bool UpstreamLeg::early_reply() const {
  return !connection_->transport.is_quiet();
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
      const bool ready = co_await wait_writable();
      if (!ready) {
        const auto why = interrupted();
        co_return why == LegFailure::none ? LegFailure::reset : why;
      }
      if (early_reply()) {  // whatever it is, reading the head tells
        cut_short_ = true;
        co_return LegFailure::none;
      }
    } else {
      // The peer has closed its side. It may have said why before.
      if (!early_reply()) co_return LegFailure::reset;
      cut_short_ = true;
      co_return LegFailure::none;
    }
  }
  co_return LegFailure::none;
}

Awaitable<LegFailure> UpstreamLeg::send() {
  std::array<iovec, 8> few;  // head, and the pieces of an edited body
  std::vector<iovec> many;
  if (request_.body.size() >= few.size()) many.resize(1 + request_.body.size());
  const std::span<iovec> room = many.empty() ? std::span<iovec>(few) : std::span<iovec>(many);
  std::size_t used = 0;
  room[used++] = {request_.head.data(), request_.head.size()};
  for (const auto piece : request_.body) {
    if (!piece.empty()) room[used++] = {const_cast<char*>(piece.data()), piece.size()};
  }
  const auto wire = room.first(used);
  auto failure = co_await send_wire(wire);
  if (failure == LegFailure::none && request_.upload != nullptr && !cut_short_)
    failure = co_await send_upload();
  if (failure == LegFailure::none) times_.sent = Clock::now();
  if (failure == LegFailure::none && request_.on_sent) request_.on_sent();
  co_return failure;
}

Awaitable<LegFailure> UpstreamLeg::send_upload() {
  auto& upload = *request_.upload;
  std::string wire;
  while (!upload.finished()) {
    wire.clear();
    if (!upload.try_next(wire)) co_return LegFailure::upload;
    if (wire.empty()) {
      if (upload.finished()) break;
      if (early_reply()) {
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
  }
  co_return LegFailure::none;
}

Awaitable<LegFailure> UpstreamLeg::read_head() {
  while (true) {
    const auto status = co_await receive();
    if (status != IoStatus::ok) {
      const auto why = interrupted();
      if (why == LegFailure::none && status == IoStatus::would_block) continue;
      co_return why == LegFailure::none ? LegFailure::reset : why;
    }
    reply_started_ = true;
    std::string_view data = received_;
    if (!carry_.empty()) {
      carry_.append(data);
      data = carry_;
    }
    while (true) {
      const auto parsed = parser_.parse_head(data, context_.head_limits, head_);
      if (parsed.status == http1::HeadStatus::need_more) {
        if (data.data() != carry_.data()) carry_.assign(data);
        break;
      }
      // Upgrades were never asked for, so 101 is as wrong as broken syntax.
      if (parsed.status != http1::HeadStatus::complete || head_.status == 101 || head_.status < 100) {
        const bool too_large = parsed.status == http1::HeadStatus::too_large ||
                               parsed.status == http1::HeadStatus::too_many_fields;
        co_return too_large ? LegFailure::too_large : LegFailure::malformed;
      }
      data.remove_prefix(parsed.consumed);
      if (head_.status >= 200) {
        times_.head = Clock::now();
        carry_ = std::string(data);  // kept apart from scratch, which other legs use
        co_return LegFailure::none;
      }
      parser_.reset();  // an interim response; the real one follows
      if (data.empty()) {
        carry_.clear();
        break;
      }
      std::string rest(data);
      carry_ = std::move(rest);
      data = carry_;
    }
  }
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

Awaitable<UpstreamLeg::Body> UpstreamLeg::read() {
  while (true) {
    auto status = IoStatus::would_block;
    if (std::exchange(read_was_full_, false)) {
      const auto carried = carry_.size();
      std::memcpy(context_.scratch.data(), carry_.data(), carried);
      const auto got = connection_->transport.try_read(context_.scratch.subspan(carried));
      status = got.status;
      received_ = {context_.scratch.data(), carried + got.size};
      read_was_full_ = received_.size() == context_.scratch.size();
    }
    if (status == IoStatus::would_block) {
      status = IoStatus::failed;
      if (begin_receive()) {
        reading_ = true;
        const auto [ec, size] = co_await connection_->transport.receive(near_room());
        reading_ = false;
        status = end_receive(ec, size, carry_);
      }
      if (const auto why = interrupted(); why != LegFailure::none) {
        close();
        co_return Body{why, false, {}, {}};
      }
      if (status == IoStatus::would_block) {  // woken for another reason
        if (std::exchange(nudged_, false)) co_return Body{};
        continue;
      }
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
