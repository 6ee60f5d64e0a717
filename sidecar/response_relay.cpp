#include "sidecar/response_relay.hpp"

#include <boost/beast/http/status.hpp>
#include "sidecar/give_memory_back.hpp"
#include "sidecar/http1/head_text.hpp"

namespace handoff::sidecar {
namespace {

// Beyond this many pieces a read is copied into one buffer instead of being gathered by the kernel.
constexpr std::size_t kMaxGathered = 24;

using http1::append_content_length;
using http1::append_field;
using http1::append_number;

void append_status_line(std::string& out, unsigned status, std::string_view reason) {
  out += "HTTP/1.1 ";
  append_number(out, status, 10);
  out += ' ';
  out += reason;
  out += "\r\n";
}

bool has_no_body(unsigned status) {
  return status < 200 || status == 204 || status == 304;
}

}  // namespace

Answer error_answer(SidecarError error) {
  const auto& row = row_of(error);
  return error_answer(error, row.status, row.message);
}

Answer error_answer(SidecarError error, unsigned status, std::string_view message,
                    std::optional<std::string_view> param) {
  Answer answer{status, {{"content-type", "application/json"}}, error_body(error, status, message, param)};
  if (error == SidecarError::sidecar_overloaded) answer.headers.emplace_back("retry-after", "1");
  return answer;
}

ResponseRelay::ResponseRelay(ClientConnection& client, const http1::RequestHead& request, bool& draining)
    : client_(client), request_(request), draining_(draining), keep_alive_(request.keep_alive) {}

void ResponseRelay::end_head() {
  if (draining_) keep_alive_ = false;
  if (framing_ == Framing::until_close) keep_alive_ = false;
  if (!keep_alive_) {
    append_field(head_, "connection", "close");
  } else if (request_.version < 11) {
    append_field(head_, "connection", "keep-alive");
  }
  head_ += "\r\n";
  started_ = true;
}

void ResponseRelay::start(const http1::ResponseHead& head) {
  status_ = head.status;
  head_.reserve(head.text.size() + 64);
  append_status_line(head_, head.status, head.reason);
  for (const auto& field : head.fields) {
    if (!is_forwarded(field.kind) || head.connection.removes(field.name)) continue;
    append_field(head_, field.name, field.value);
  }
  if (request_.method == "HEAD" || has_no_body(head.status)) {
    framing_ = Framing::none;
    if (head.content_length && head.status != 204) {
      append_content_length(head_, *head.content_length);
    }
  } else if (head.content_length) {
    framing_ = Framing::fixed;
    append_content_length(head_, *head.content_length);
  } else if (request_.version >= 11) {
    framing_ = Framing::chunked;
    append_field(head_, "transfer-encoding", "chunked");
  } else {
    framing_ = Framing::until_close;
  }
  end_head();
}

void ResponseRelay::start(const Answer& answer, bool length_known) {
  status_ = answer.status;
  const auto reason =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(answer.status));
  append_status_line(head_, answer.status, {reason.data(), reason.size()});
  for (const auto& [name, value] : answer.headers) append_field(head_, name, value);
  if (has_no_body(answer.status)) {
    framing_ = Framing::none;
  } else if (length_known) {
    framing_ = Framing::fixed;
    append_content_length(head_, answer.body.size());
  } else if (request_.version >= 11) {
    framing_ = Framing::chunked;
    append_field(head_, "transfer-encoding", "chunked");
  } else {
    framing_ = Framing::until_close;
  }
  if (request_.method == "HEAD") framing_ = Framing::none;
  end_head();
}

bool ResponseRelay::forward(std::span<const std::string_view> pieces, bool last, std::string_view verbatim) {
  if (!verbatim.empty() && framing_ == Framing::chunked && head_.empty() && !last)
    return client_.try_send(verbatim);
  wire_.clear();
  framing_bytes_.clear();
  const auto add = [this](std::string_view bytes) {
    if (!bytes.empty()) wire_.push_back({const_cast<char*>(bytes.data()), bytes.size()});
  };
  if (last) complete_ = true;
  if (framing_ == Framing::none) pieces = {};
  if (framing_ != Framing::chunked) {
    add(head_);
    for (const auto piece : pieces) add(piece);
  } else if (pieces.size() > kMaxGathered) {
    framing_bytes_ = head_;
    for (const auto piece : pieces) {
      if (piece.empty()) continue;
      append_number(framing_bytes_, piece.size(), 16);
      framing_bytes_ += "\r\n";
      framing_bytes_ += piece;
      framing_bytes_ += "\r\n";
    }
    if (last) framing_bytes_ += "0\r\n\r\n";
    add(framing_bytes_);
  } else {
    constexpr std::size_t kLongestFrame = 24;
    framing_bytes_.reserve((pieces.size() + 1) *
                           kLongestFrame);  // never grows below: its bytes are pointed to
    std::size_t mark = 0;
    const auto add_framing = [&] {
      add(std::string_view(framing_bytes_).substr(mark));
      mark = framing_bytes_.size();
    };
    add(head_);
    bool after_piece = false;
    for (const auto piece : pieces) {
      if (piece.empty()) continue;
      if (after_piece) framing_bytes_ += "\r\n";
      append_number(framing_bytes_, piece.size(), 16);
      framing_bytes_ += "\r\n";
      add_framing();
      add(piece);
      after_piece = true;
    }
    if (after_piece) framing_bytes_ += "\r\n";
    if (last) framing_bytes_ += "0\r\n\r\n";
    add_framing();
  }
  const bool sent = wire_.empty() || client_.try_send(std::span<const iovec>(wire_.data(), wire_.size()));
  head_.clear();
  return sent;
}

Awaitable<RelayEnd> ResponseRelay::flushed(bool sent) {
  if (!sent) {
    const bool still_there = co_await client_.flush();
    if (!still_there) co_return RelayEnd::client_gone;
  }
  co_return RelayEnd::complete;
}

Awaitable<RelayEnd> ResponseRelay::send(const Answer& answer) {
  start(answer, /*length_known=*/true);
  const std::string_view body = answer.body;
  const bool sent = forward({&body, 1}, true);
  co_return co_await flushed(sent);
}

Awaitable<RelayEnd> ResponseRelay::begin(const Answer& head) {
  start(head, /*length_known=*/false);
  const bool sent = forward({}, false);
  co_return co_await flushed(sent);
}

Awaitable<RelayEnd> ResponseRelay::write(std::span<const std::string_view> pieces, bool last) {
  const bool sent = forward(pieces, last);
  co_return co_await flushed(sent);
}

Awaitable<RelayEnd> ResponseRelay::relay(UpstreamLeg& leg, std::string_view held, bool held_is_all) {
  start(leg.head());
  if (held_is_all || !held.empty()) {
    if (!forward({&held, 1}, held_is_all)) {
      const bool still_there = co_await client_.flush();
      if (!still_there) co_return RelayEnd::client_gone;
    }
    if (held_is_all) co_return RelayEnd::complete;
  } else {
    const auto body = leg.first();
    failure_ = body.failure;
    // A reply that breaks in its first bytes still says nothing to the client, so that an error can be told.
    if (body.failure != LegFailure::none && body.pieces.empty()) {
      head_.clear();
      started_ = false;
      co_return RelayEnd::engine_failed;
    }
    if (!forward(body.pieces, body.complete)) {
      const bool still_there = co_await client_.flush();
      if (!still_there) co_return RelayEnd::client_gone;
    }
    if (body.complete) co_return RelayEnd::complete;
    if (body.failure != LegFailure::none) co_return RelayEnd::engine_failed;
  }
  // From here on there may be minutes of waiting, by thousands of streams: nothing is held that is not
  // needed.
  give_memory_back(head_);
  leg.let_go_of_heads();
  if (on_flowing_) on_flowing_();
  while (true) {
    const auto body = co_await leg.read();
    failure_ = body.failure;
    if (client_.gone()) co_return RelayEnd::client_gone;  // read on only to let the engine get that far
    if (!body.pieces.empty() || body.complete) {
      if (!forward(body.pieces, body.complete, body.verbatim)) {
        const bool still_there = co_await client_.flush();
        if (!still_there) co_return RelayEnd::client_gone;
      }
    }
    if (body.complete) co_return RelayEnd::complete;
    if (body.failure != LegFailure::none)
      co_return client_.gone() ? RelayEnd::client_gone : RelayEnd::engine_failed;
  }
}

void ResponseRelay::break_off() {
  keep_alive_ = false;
  complete_ = false;
  // Where only the connection's end marks the end of the body, a plain close would look like a complete
  // answer.
  if (framing_ == Framing::until_close) {
    client_.reset();
  } else {
    client_.finish_sending();  // not close(): with a pipelined request unread that would be a reset, which
                               // may take
  }                            // the answers before this one from a client that has not read them yet
}

}  // namespace handoff::sidecar
