#include "epp/ext_proc/ext_proc_stream.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace handoff::epp {
namespace {

// Beyond this a body grows as it comes: its announced size is only a claim.
constexpr std::uint64_t kReserveAtMost = 256 * 1024;

std::optional<std::uint64_t> announced_size(const HeaderBlock& headers) {
  const auto text = headers.first("content-length");
  if (!text) return std::nullopt;
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), size);
  // Out of range is larger than any limit.
  if (error == std::errc::result_out_of_range) return UINT64_MAX;
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return size;
}

unsigned to_status(std::string_view text) {
  unsigned status = 0;
  std::from_chars(text.data(), text.data() + text.size(), status);
  return status;
}

bool is_event_stream(std::string_view content_type) {
  constexpr std::string_view kType = "text/event-stream";
  if (content_type.size() < kType.size()) return false;
  return std::equal(kType.begin(), kType.end(), content_type.begin(),
                    [](char wanted, char c) { return wanted == (c >= 'A' && c <= 'Z' ? c + 32 : c); });
}

}  // namespace

ExtProcStream::~ExtProcStream() {
  discharge();
}

void ExtProcStream::on_opening(const StreamOpening& opening) {
  opening_ = opening;
  if (opening.modes) response_mode_ = opening.modes->response;
  response_.set_mode(response_mode_, opening.observability);
  if (!opening.observability && response_mode_ == BodyMode::kGrpc) {
    fail(StreamStatus::kFailedPrecondition,
         "response_body_mode GRPC is not supported; set processing_mode.response_body_mode to "
         "FULL_DUPLEX_STREAMED");
  }
}

void ExtProcStream::on_request_headers(HeaderBlock headers, bool end_of_stream,
                                       std::optional<std::vector<std::string>> subset) {
  if (ignores_messages()) return;
  if (request_ != RequestState::kExpectingHeaders) {
    fail(StreamStatus::kInvalidArgument, "request headers came twice");
    return;
  }
  const bool wrong_mode = opening_.modes && opening_.modes->request != BodyMode::kFullDuplex;
  if (wrong_mode && !opening_.observability) {
    // In any other mode the gateway waits for the headers' answer before it sends the body, and the route
    // depends on the body.
    fail(StreamStatus::kFailedPrecondition,
         "request_body_mode must be FULL_DUPLEX_STREAMED; set it in the ext_proc filter's processing_mode");
    return;
  }
  headers_ = std::move(headers);
  subset_ = std::move(subset);
  request_ = RequestState::kReceiving;
  has_body_ = !end_of_stream;
  // Who only observes may not be sent the body.
  const bool no_body_comes =
      opening_.observability && opening_.modes && opening_.modes->request == BodyMode::kNone;
  if (end_of_stream || no_body_comes) {
    request_complete();
    return;
  }
  received_body_ = std::make_shared<std::string>();
  const auto size = announced_size(headers_);
  if (size && *size > limits_.max_request_body) {
    refuse({.error = EppError::request_too_large, .message = {}});
    return;
  }
}

void ExtProcStream::on_request_body(std::string bytes, bool end_of_stream) {
  if (ignores_messages()) return;
  if (request_ == RequestState::kExpectingHeaders) {
    if (opening_.observability) return;
    fail(StreamStatus::kFailedPrecondition,
         "the request body came without headers; set processing_mode.request_header_mode to SEND");
    return;
  }
  // Some Envoy versions repeat the last piece of a long body. What follows the first end is not part of it.
  if (request_ != RequestState::kReceiving) return;
  if (received_body_->size() + bytes.size() > limits_.max_request_body) {
    refuse({.error = EppError::request_too_large, .message = {}});
    return;
  }
  if (!charge(bytes.size())) {
    refuse({.error = EppError::buffers_full, .message = {}});
    return;
  }
  if (received_body_->empty()) {
    *received_body_ = std::move(bytes);
    if (!end_of_stream) {
      const std::uint64_t expected = std::min(announced_size(headers_).value_or(0), kReserveAtMost);
      received_body_->reserve(static_cast<std::size_t>(expected));
    }
  } else {
    received_body_->append(bytes);
  }
  if (!end_of_stream) return;
  body_ended_ = true;
  request_complete();
}

void ExtProcStream::on_request_trailers() {
  if (ignores_messages()) return;
  if (request_ == RequestState::kExpectingHeaders) {
    if (opening_.observability) return;
    fail(StreamStatus::kFailedPrecondition,
         "request trailers came without headers; set processing_mode.request_header_mode to SEND");
    return;
  }
  if (trailers_ || !has_body_) return;
  trailers_ = true;
  if (request_ == RequestState::kReceiving) request_complete();
  // An answer of trailers is owed even when everything else was given back.
  if (request_ == RequestState::kOver && body_done_) request_ = RequestState::kAnswering;
}

void ExtProcStream::on_response_headers(std::string_view status, std::string_view content_type,
                                        bool end_of_stream) {
  if (ignores_messages()) return;
  leave_planning();
  response_.on_headers(to_status(status), is_event_stream(content_type), end_of_stream);
}

void ExtProcStream::on_response_body(std::string bytes, bool end_of_stream) {
  if (ignores_messages()) return;
  leave_planning();
  response_.on_body(std::move(bytes), end_of_stream);
}

void ExtProcStream::on_response_trailers() {
  if (ignores_messages()) return;
  leave_planning();
  response_.on_trailers();
}

void ExtProcStream::on_served_endpoint(std::string_view endpoint) {
  if (!ignores_messages()) events_.on_served_endpoint(endpoint);
}

void ExtProcStream::on_request_timeout() {
  if (!ignores_messages() && receives_request()) refuse({.error = EppError::request_timeout, .message = {}});
}

bool ExtProcStream::route(RouteAnswer answer) {
  if (request_ != RequestState::kPlanning || ignores_messages()) return false;
  request_ = RequestState::kAnswering;
  if (answer.replaced_body) outgoing_body_ = answer.replaced_body;
  route_ = std::move(answer);
  if (!opening_.observability) return true;
  request_ = RequestState::kOver;
  outgoing_body_.reset();
  discharge();
  return true;
}

bool ExtProcStream::refuse(Refusal refusal) {
  const bool is_open = request_ == RequestState::kReceiving || request_ == RequestState::kPlanning;
  if (!is_open || ignores_messages()) return false;
  request_ = RequestState::kOver;
  received_body_.reset();
  outgoing_body_.reset();
  discharge();
  // Nobody may be answered in observability mode; the stream just goes on.
  if (!opening_.observability) refusal_ = std::move(refusal);
  return true;
}

std::optional<Answer> ExtProcStream::next() {
  if (ended_) return std::nullopt;
  if (refusal_) {
    ended_ = StreamEnd{};
    return Answer{*refusal_};
  }
  if (response_.has_answer() && (response_turn_ || request_ != RequestState::kAnswering)) {
    response_turn_ = false;
    return response_.take();
  }
  response_turn_ = true;
  return next_of_request();
}

void ExtProcStream::request_complete() {
  request_ = RequestState::kPlanning;
  outgoing_body_ = std::move(received_body_);
  received_body_.reset();
  events_.on_request({.headers = std::move(headers_),
                      .body = outgoing_body_,
                      .subset = std::move(subset_),
                      .observed = opening_.observability});
}

// A response while the request still waits for its route was made by the gateway itself.
void ExtProcStream::leave_planning() {
  if (request_ != RequestState::kReceiving && request_ != RequestState::kPlanning) return;
  if (opening_.observability) return;
  request_ = RequestState::kOver;
  received_body_.reset();
  outgoing_body_.reset();
  discharge();
  events_.on_abandoned();
}

void ExtProcStream::fail(StreamStatus status, std::string message) {
  if (std::exchange(failed_, true)) return;
  ended_ = StreamEnd{status, std::move(message)};
}

std::optional<Answer> ExtProcStream::next_of_request() {
  if (request_ != RequestState::kAnswering) return std::nullopt;
  if (route_) {
    HeadersAnswer headers{.direction = Direction::kRequest, .route = std::move(route_)};
    route_.reset();
    body_done_ = !has_body_;
    if (body_done_) request_ = RequestState::kOver;
    return Answer{std::move(headers)};
  }
  if (!body_done_) {
    const bool left = outgoing_body_ && given_back_ < outgoing_body_->size();
    // An empty body is one empty piece that ends it, unless trailers do.
    if (left || body_ended_) {
      BodyAnswer piece = next_body_piece();
      if (body_done_ && !trailers_) request_ = RequestState::kOver;
      return Answer{std::move(piece)};
    }
    body_done_ = true;
    outgoing_body_.reset();
    discharge();
  }
  if (trailers_ && !std::exchange(trailers_answered_, true)) {
    request_ = RequestState::kOver;
    return Answer{TrailersAnswer{.direction = Direction::kRequest}};
  }
  request_ = RequestState::kOver;
  return std::nullopt;
}

BodyAnswer ExtProcStream::next_body_piece() {
  const std::string& body = *outgoing_body_;
  BodyAnswer piece{.direction = Direction::kRequest, .bytes = body.substr(given_back_, kMaxBodyPiece)};
  given_back_ += piece.bytes.size();
  if (given_back_ < body.size()) return piece;
  piece.end_of_stream = body_ended_;
  body_done_ = true;
  outgoing_body_.reset();
  discharge();
  return piece;
}

bool ExtProcStream::charge(std::size_t bytes) {
  if (limits_.buffered_bytes == nullptr) return true;
  const std::uint64_t before = limits_.buffered_bytes->fetch_add(bytes, std::memory_order_relaxed);
  charged_ += bytes;
  return before + bytes <= limits_.max_buffered;
}

void ExtProcStream::discharge() {
  if (limits_.buffered_bytes != nullptr) {
    limits_.buffered_bytes->fetch_sub(charged_, std::memory_order_relaxed);
  }
  charged_ = 0;
}

}  // namespace handoff::epp
