#include "sidecar/request_body.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "sidecar/fair_turn.hpp"
#include "sidecar/http1/head_text.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::size_t kFirstRoom = 16 * 1024;
constexpr std::size_t kKept = 16 * 1024;
// A body that says it is larger than this is given room as it comes, so that claiming a size costs the
// claimant.
constexpr std::size_t kTrustedLength = 1024 * 1024;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// Asks for the body of a client that waits to be asked.
void invite_body(ClientConnection& client, const http1::RequestHead& head) {
  if (head.expects_continue && head.version >= 11 && client.inbox.empty()) client.try_send(kContinue);
}

Awaitable<BodyReadEnd> read_fixed(ClientConnection& client, std::uint64_t length, Clock::time_point end,
                                  RequestBody& out) {
  const auto from_inbox = static_cast<std::size_t>(std::min<std::uint64_t>(client.inbox.size(), length));
  if (!out.reserve_more(static_cast<std::size_t>(
          length <= kTrustedLength ? length : std::max<std::uint64_t>(from_inbox, kTrustedLength)))) {
    co_return BodyReadEnd::overloaded;
  }
  if (!out.append(std::string_view(client.inbox).substr(0, from_inbox))) co_return BodyReadEnd::overloaded;
  client.inbox.erase(0, from_inbox);
  bool try_first = true;  // a body usually follows its head closely
  FairTurn turn;
  while (out.size() < length) {
    if (out.room().empty()) {
      const auto more = std::min<std::uint64_t>(length - out.size(), std::max(out.size(), kFirstRoom));
      if (!out.reserve_more(static_cast<std::size_t>(more))) co_return BodyReadEnd::overloaded;
    }
    if (!try_first) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
      if (left.count() <= 0) co_return BodyReadEnd::timed_out;
      const auto event = co_await client.wait_for_bytes(left);
      if (event == ClientEvent::timed_out) co_return BodyReadEnd::timed_out;
      if (event != ClientEvent::readable) co_return BodyReadEnd::client_gone;
    }
    if (turn.is_over()) co_await let_others_run(client.executor());
    auto room = out.room();
    room = room.first(static_cast<std::size_t>(std::min<std::uint64_t>(room.size(), length - out.size())));
    const auto got = client.try_read(room);
    if (got.status == IoStatus::ok) {
      out.commit(got.size);
      try_first = got.size == room.size();
    } else if (got.status == IoStatus::would_block) {
      try_first = false;
    } else {
      co_return BodyReadEnd::client_gone;
    }
  }
  co_return BodyReadEnd::complete;
}

}  // namespace

void RequestBody::Free::operator()(char* data) const {
  std::free(data);
}

bool RequestBody::charge(std::size_t bytes) {
  if (bytes <= charged_) return true;
  if (!share_.grow_to(bytes)) return false;
  charged_ = bytes;
  return true;
}

bool RequestBody::reserve_more(std::size_t more) {
  if (capacity_ - size_ < more) {
    const auto wanted = std::max(size_ + more, std::min({capacity_ * 2, capacity_ + kTrustedLength, whole_}));
    auto* grown = static_cast<char*>(std::realloc(data_.get(), wanted));
    if (grown == nullptr) return false;
    (void)data_.release();
    data_.reset(grown);
    capacity_ = wanted;
  }
  // Untouched memory costs nothing yet. What counts is what has come, and as much again.
  return charge(std::min({capacity_, whole_, std::max(size_ + std::min(more, kFirstRoom), size_ * 2)}));
}

void RequestBody::settle() {
  share_.shrink_to(size_);
  charged_ = std::min(charged_, size_);
}

void RequestBody::clear() {
  size_ = 0;
  whole_ = kUnknown;
  if (capacity_ > kKept) release();
}

void RequestBody::release() {
  data_.reset();
  size_ = 0;
  whole_ = kUnknown;
  capacity_ = 0;
  charged_ = 0;
  share_.release();
}

bool RequestBody::append(std::string_view bytes) {
  if (bytes.empty()) return true;
  if (!reserve_more(bytes.size()) || !charge(size_ + bytes.size())) return false;
  std::memcpy(data_.get() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
  return true;
}

Awaitable<BodyReadEnd> read_body(ClientConnection& client, http1::RequestParser& parser,
                                 const http1::RequestHead& head, std::size_t limit, milliseconds time,
                                 std::span<char> scratch, RequestBody& out) {
  if (!head.has_body()) co_return BodyReadEnd::complete;
  const auto end = Clock::now() + time;
  if (!head.chunked) {
    if (*head.content_length > limit) co_return BodyReadEnd::over_limit;
    invite_body(client, head);
    out.expect(static_cast<std::size_t>(*head.content_length));
    co_return co_await read_fixed(client, *head.content_length, end, out);
  }
  invite_body(client, head);
  std::vector<std::string_view> pieces;
  FairTurn turn;
  while (true) {
    pieces.clear();
    const auto parsed = parser.parse_body(client.inbox, pieces);
    for (const auto piece : pieces) {
      if (!out.reserve_more(std::max(piece.size(), out.size() == 0 ? kFirstRoom : 0))) {
        co_return BodyReadEnd::overloaded;
      }
      if (!out.append(piece)) co_return BodyReadEnd::overloaded;
    }
    client.inbox.erase(0, parsed.consumed);
    if (parsed.status == http1::BodyStatus::malformed) co_return BodyReadEnd::malformed;
    if (out.size() > limit) co_return BodyReadEnd::over_limit;
    if (parsed.status == http1::BodyStatus::complete) {
      out.settle();
      co_return BodyReadEnd::complete;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (left.count() <= 0) co_return BodyReadEnd::timed_out;
    const auto event = co_await client.wait_for_bytes(left);
    if (event == ClientEvent::timed_out) co_return BodyReadEnd::timed_out;
    if (event != ClientEvent::readable) co_return BodyReadEnd::client_gone;
    if (turn.is_over()) co_await let_others_run(client.executor());
    const auto got = client.try_read(scratch);
    if (got.status == IoStatus::ok) {
      client.inbox.append(scratch.data(), got.size);
    } else if (got.status != IoStatus::would_block) {
      co_return BodyReadEnd::client_gone;
    }
  }
}

ClientUpload::ClientUpload(ClientConnection& client, http1::RequestParser& parser,
                           const http1::RequestHead& head, std::string_view prefix, std::span<char> scratch,
                           milliseconds silence_limit)
    : client_(client),
      parser_(parser),
      head_(head),
      prefix_(prefix),
      scratch_(scratch),
      silence_limit_(silence_limit) {
  if (prefix_.empty()) invite_body(client, head);
}

void ClientUpload::frame(std::string_view piece, std::string& wire) {
  if (piece.empty()) return;
  bytes_ += piece.size();
  if (head_.chunked) {
    http1::append_number(wire, piece.size(), 16);
    wire += "\r\n";
    wire += piece;
    wire += "\r\n";
  } else {
    wire += piece;
  }
}

bool ClientUpload::take(std::string_view data, std::string& wire, bool from_inbox) {
  std::size_t consumed = 0;
  if (head_.chunked) {
    pieces_.clear();
    const auto parsed = parser_.parse_body(data, pieces_);
    for (const auto piece : pieces_) frame(piece, wire);
    consumed = parsed.consumed;
    if (parsed.status == http1::BodyStatus::malformed) {
      malformed_ = true;
      return false;
    }
    if (parsed.status == http1::BodyStatus::complete) {
      finished_ = true;
      wire += "0\r\n\r\n";
    }
  } else {
    consumed = static_cast<std::size_t>(std::min<std::uint64_t>(data.size(), *head_.content_length - bytes_));
    frame(data.substr(0, consumed), wire);
    finished_ = bytes_ == *head_.content_length;
  }
  if (from_inbox) {
    client_.inbox.erase(0, consumed);
  } else {
    client_.inbox.assign(data.substr(consumed));
  }
  return true;
}

bool ClientUpload::try_next(std::string& wire) {
  if (lost_ || timed_out_) return false;
  if (!prefix_sent_) {
    prefix_sent_ = true;
    frame(prefix_, wire);
    if (head_.chunked &&
        parser_.is_complete()) {  // the last chunk came with the one that went over the limit
      finished_ = true;
      wire += "0\r\n\r\n";
    }
    if (!wire.empty()) return true;
  }
  if (!client_.inbox.empty() && !take(std::string(client_.inbox), wire, /*from_inbox=*/true)) return false;
  if (!wire.empty() || finished_) return true;
  const auto got = client_.try_read(scratch_);
  if (got.status == IoStatus::would_block) return true;
  if (got.status != IoStatus::ok) {
    lost_ = true;
    return false;
  }
  if (client_.inbox.empty()) return take({scratch_.data(), got.size}, wire, /*from_inbox=*/false);
  client_.inbox.append(scratch_.data(), got.size);
  return take(std::string(client_.inbox), wire, /*from_inbox=*/true);
}

// In slices, so that the caller sees an engine that answers or dies while the client is silent.
Awaitable<> ClientUpload::wait() {
  constexpr milliseconds kSlice{100};
  const auto slice = std::min(kSlice, silence_limit_ - silence_);
  const auto event = co_await client_.wait_for_bytes(slice);
  if (event == ClientEvent::timed_out) {
    silence_ += slice;
    timed_out_ = silence_ >= silence_limit_;
    co_return;
  }
  silence_ = milliseconds(0);
  if (event != ClientEvent::readable) lost_ = client_.gone();
}

}  // namespace handoff::sidecar
