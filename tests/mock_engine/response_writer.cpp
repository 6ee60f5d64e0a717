#include "response_writer.hpp"

#include <algorithm>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <ctime>
#include <limits>

#include "gzip.hpp"

namespace handoff::mock {
namespace {

const char* reason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 103:
      return "Early Hints";
    case 200:
      return "OK";
    case 307:
      return "Temporary Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Request Entity Too Large";
    case 429:
      return "Too Many Requests";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

std::string date() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text;
}

std::string hex(std::size_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%zx", value);
  return text;
}

bool has_no_body(int status) {
  return status < 200 || status == 204 || status == 304;
}

}  // namespace

Awaitable<void> ResponseWriter::informational(InformationalHeads heads) {
  std::string text;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(heads.count, 1000); ++i) {
    text += "HTTP/1.1 " + std::to_string(heads.status) + " " + reason(heads.status) + "\r\n";
    for (const auto& [name, value] : heads.headers) text += name + ": " + value + "\r\n";
    text += "\r\n";
  }
  // Not counted by `at`: that counts the response proper.
  auto [error, size] = co_await net::async_write(socket_, net::buffer(text), kTuple);
  if (error) throw ConnectionEnded{};
}

Awaitable<void> ResponseWriter::full(int status, std::string content_type, HeaderList headers,
                                     std::string body) {
  if (plan_.sse && content_type == "application/json") {
    content_type = "text/event-stream; charset=utf-8";
    body = "data: " + body + "\n\ndata: [DONE]\n\n";
  }
  if ((plan_.gzip && terms_.accepts_gzip) || plan_.gzip_always) {
    body = gzip_stored(body);
    headers.emplace_back("content-encoding", "gzip");
  }
  mode_ = choose_mode(true);
  std::uint64_t length = body.size();
  if (plan_.framing == Framing::kShortLength) length /= 2;
  if (plan_.framing == Framing::kLongLength) length += 16;
  if (has_no_body(status)) body.clear();
  std::string text = head(status, content_type, headers, mode_, length);
  head_size_ = text.size();
  head_known_ = true;
  // One write for head and body, as a small real response arrives.
  text += mode_ == BodyMode::kChunked && !body.empty() ? framed(std::move(body)) : std::move(body);
  if (mode_ == BodyMode::kChunked && plan_.framing != Framing::kNoFinalChunk) text += "0\r\n\r\n";
  co_await send(std::move(text));
}

Awaitable<void> ResponseWriter::begin_stream(int status, std::string content_type, HeaderList headers) {
  mode_ = choose_mode(false);
  std::string text = head(status, content_type, headers, mode_, 10);
  head_size_ = text.size();
  head_known_ = true;
  co_await send(std::move(text));
}

Awaitable<void> ResponseWriter::piece(std::string data) {
  if (data.empty()) co_return;
  std::string text = mode_ == BodyMode::kChunked ? framed(std::move(data)) : std::move(data);
  co_await send(std::move(text));
}

Awaitable<void> ResponseWriter::end_stream() {
  if (mode_ == BodyMode::kChunked && plan_.framing != Framing::kNoFinalChunk) co_await send("0\r\n\r\n");
}

ResponseWriter::BodyMode ResponseWriter::choose_mode(bool length_known) {
  switch (plan_.framing) {
    case Framing::kBadChunkSize:
    case Framing::kNoFinalChunk:
    case Framing::kGarbageStatus:
    case Framing::kLongLength:
      terms_.keep_alive = false;
      break;
    default:
      break;
  }
  if (plan_.http10 || plan_.no_length || (terms_.http10 && !length_known)) {
    terms_.keep_alive = false;
    return BodyMode::kUntilClose;
  }
  switch (plan_.framing) {
    case Framing::kBadChunkSize:
    case Framing::kChunkedAndLength:
    case Framing::kNoFinalChunk:
      return BodyMode::kChunked;
    case Framing::kShortLength:
    case Framing::kLongLength:
      return BodyMode::kLength;
    default:
      break;
  }
  if (plan_.reply && plan_.reply->chunked) return BodyMode::kChunked;
  return length_known && !plan_.sse ? BodyMode::kLength : BodyMode::kChunked;
}

std::string ResponseWriter::head(int status, const std::string& content_type, const HeaderList& headers,
                                 BodyMode mode, std::uint64_t length) {
  status_ = status;
  std::string text = plan_.http10 ? "HTTP/1.0 " : "HTTP/1.1 ";
  if (plan_.framing == Framing::kGarbageStatus) text = "HTCPCP/x teapot ";
  text += std::to_string(status) + " " + reason(status) + "\r\n";
  text += "date: " + date() + "\r\nserver: uvicorn\r\n";
  if (mode == BodyMode::kLength && status != 204 && status != 304) {
    text += "content-length: " + std::to_string(length) + "\r\n";
  }
  if (mode == BodyMode::kChunked && plan_.framing == Framing::kChunkedAndLength) {
    text += "content-length: " + std::to_string(length) + "\r\n";
  }
  if (!content_type.empty()) text += "content-type: " + content_type + "\r\n";
  if (mode == BodyMode::kChunked) text += "transfer-encoding: chunked\r\n";
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  if (plan_.framing == Framing::kOversizeHead)
    text += "x-filler: " + std::string(plan_.head_bytes, 'a') + "\r\n";
  if (!terms_.keep_alive && mode != BodyMode::kUntilClose && plan_.framing == Framing::kSound) {
    text += "connection: close\r\n";
  }
  return text + "\r\n";
}

std::string ResponseWriter::framed(std::string data) const {
  const std::string size = plan_.framing == Framing::kBadChunkSize ? "zz" : hex(data.size());
  return size + "\r\n" + data + "\r\n";
}

Awaitable<void> ResponseWriter::send(std::string data) {
  std::string_view rest = data;
  while (!rest.empty()) {
    std::string_view slice = rest;
    if (plan_.cut) {
      const std::uint64_t at = plan_.cut->in_body && head_known_ ? head_size_ + plan_.cut->at : plan_.cut->at;
      if (sent_ >= at) co_await cut();
      slice = slice.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(slice.size(), at - sent_)));
    }
    if (plan_.trickle && trickled_ < plan_.trickle->most) {
      ++trickled_;
      slice = slice.substr(0, plan_.trickle->bytes);
      if (sent_ > 0) co_await sleep_for(plan_.trickle->every);
    }
    co_await send_slice(slice);
    rest.remove_prefix(slice.size());
  }
}

Awaitable<void> ResponseWriter::send_slice(std::string_view data) {
  auto [error, size] = co_await net::async_write(socket_, net::buffer(data.data(), data.size()), kTuple);
  if (error) throw ConnectionEnded{};
  sent_ += size;
}

Awaitable<void> ResponseWriter::cut() {
  // Silence lasts until the peer gives up; the session's disconnect watch then cancels this wait.
  while (plan_.cut->kind == CutKind::kStall) co_await sleep_for(std::chrono::hours(1));
  throw ConnectionEnded{plan_.cut->kind == CutKind::kReset};
}

}  // namespace handoff::mock
