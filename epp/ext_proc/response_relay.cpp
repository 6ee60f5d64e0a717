#include "epp/ext_proc/response_relay.hpp"

#include <utility>

namespace handoff::epp {
namespace {

constexpr unsigned kUnknownStatus = 0;  // the gateway does not send response headers
constexpr std::size_t kMostTaken = 64;

// Answers without bytes, or with one, take memory as well.
std::size_t size_of(const Answer& answer) {
  const auto* body = std::get_if<BodyAnswer>(&answer);
  return sizeof(Answer) + (body != nullptr ? body->bytes.size() : 0);
}

}  // namespace

void ResponseRelay::set_mode(BodyMode mode, bool silent) {
  mode_ = mode;
  silent_ = silent;
}

void ResponseRelay::on_headers(unsigned status, bool event_stream, bool end_of_stream) {
  if (started_) return;
  start(status, event_stream);
  queue(HeadersAnswer{.direction = Direction::kResponse, .route = std::nullopt});
  // Without bodies nothing later tells of the first byte.
  if (end_of_stream || mode_ == BodyMode::kNone) note_first_byte();
  if (end_of_stream) {
    body_ended_ = true;
    end();
  }
}

void ResponseRelay::on_body(std::string bytes, bool end_of_stream) {
  if (!started_) start(kUnknownStatus, false);
  // Some Envoy versions repeat the last chunk of a long body: only the first end counts.
  if (body_ended_) return;
  if (!bytes.empty()) {
    note_first_byte();
    events_.on_response_bytes(bytes);
  }
  body_ended_ = end_of_stream;
  queue_body(std::move(bytes), end_of_stream);
  if (end_of_stream) end();
}

void ResponseRelay::on_trailers() {
  if (std::exchange(trailers_, true)) return;
  if (!started_) start(kUnknownStatus, false);
  body_ended_ = true;
  queue(TrailersAnswer{.direction = Direction::kResponse});
  end();
}

Answer ResponseRelay::take() {
  Answer answer = std::move(queue_[taken_++]);
  if (taken_ == queue_.size()) {
    queue_.clear();
    taken_ = 0;
  } else if (taken_ >= kMostTaken) {
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
  backlog_ -= size_of(answer);
  return answer;
}

void ResponseRelay::start(unsigned status, bool event_stream) {
  started_ = true;
  events_.on_response_started(status, event_stream);
}

void ResponseRelay::note_first_byte() {
  if (std::exchange(first_byte_, true)) return;
  events_.on_first_response_byte();
}

void ResponseRelay::end() {
  if (std::exchange(ended_, true)) return;
  events_.on_response_ended();
}

void ResponseRelay::queue_body(std::string bytes, bool end_of_stream) {
  if (silent_) return;
  if (mode_ != BodyMode::kFullDuplex) {
    queue(BodyAnswer{.direction = Direction::kResponse, .streamed = false, .bytes = {}});
    return;
  }
  // An empty piece in the middle would give back nothing.
  if (bytes.empty() && !end_of_stream) return;
  std::size_t at = 0;
  for (; bytes.size() - at > kMaxBodyPiece; at += kMaxBodyPiece) {
    queue(BodyAnswer{.direction = Direction::kResponse, .bytes = bytes.substr(at, kMaxBodyPiece)});
  }
  if (at > 0) bytes.erase(0, at);
  queue(BodyAnswer{
      .direction = Direction::kResponse, .bytes = std::move(bytes), .end_of_stream = end_of_stream});
}

void ResponseRelay::queue(Answer answer) {
  if (silent_) return;
  backlog_ += size_of(answer);
  queue_.push_back(std::move(answer));
}

}  // namespace handoff::epp
