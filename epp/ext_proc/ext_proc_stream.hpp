#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "epp/ext_proc/protocol_messages.hpp"
#include "epp/ext_proc/response_relay.hpp"

namespace handoff::epp {

// Bounds of a stream. `buffered_bytes` is shared by all streams.
struct ExtProcLimits {
  std::uint64_t max_request_body = 32ULL << 20;
  std::uint64_t max_backlog = 1ULL << 20;
  std::uint64_t max_buffered = 1ULL << 30;
  std::atomic<std::uint64_t>* buffered_bytes = nullptr;  // request bodies held by all streams
};

// The ext_proc protocol of one HTTP request, without gRPC: messages of the gateway come in by the on_*()
// calls, messages to it are pulled out with next(), one at a time, so that no more is built than can be sent.
//
// The gateway takes the answers of a direction only in the order headers, body, trailers, although it sends
// the request body before the headers are answered. So the whole request is collected,
// RequestEvents::on_request() asks for a route, and then everything is given back. Request trailers end a
// body as well: no piece of it then carries the end.
//
// Owner: the call of the gRPC server (or a test). One thread. Nothing is called back after destruction.
class ExtProcStream {
 public:
  // Both must outlive the stream.
  ExtProcStream(const ExtProcLimits& limits, RequestEvents& events)
      : limits_(limits), events_(events), response_(events) {}
  ~ExtProcStream();
  ExtProcStream(const ExtProcStream&) = delete;
  ExtProcStream& operator=(const ExtProcStream&) = delete;

  // Before anything else, with what the first message says.
  void on_opening(const StreamOpening& opening);
  void on_request_headers(HeaderBlock headers, bool end_of_stream,
                          std::optional<std::vector<std::string>> subset);
  void on_request_body(std::string bytes, bool end_of_stream);
  void on_request_trailers();
  // `status` and `content_type` as the headers have them.
  void on_response_headers(std::string_view status, std::string_view content_type, bool end_of_stream);
  void on_response_body(std::string bytes, bool end_of_stream);
  void on_response_trailers();
  void on_served_endpoint(std::string_view endpoint);
  // The body did not come in within the host's time limit.
  void on_request_timeout();

  // The answer to RequestEvents::on_request(). False: nobody waits for it any more (the gateway answered by
  // itself, or the stream failed), so what it stands for has to be undone.
  bool route(RouteAnswer answer);
  bool refuse(Refusal refusal);

  // The next message to send, if there is one now.
  std::optional<Answer> next();
  // False while too much waits to be sent.
  bool wants_messages() const { return response_.backlog() <= limits_.max_backlog; }
  bool receives_request() const { return request_ == RequestState::kReceiving; }
  bool observes_only() const { return opening_.observability; }
  BodyMode response_mode() const { return response_mode_; }
  // Set once the stream has to end from our side and everything before that was taken.
  const std::optional<StreamEnd>& ended() const { return ended_; }

 private:
  enum class RequestState : std::uint8_t {
    kExpectingHeaders,
    kReceiving,  // headers are here, the end is not
    kPlanning,   // the events' owner has it
    kAnswering,  // next() gives back headers, body, trailers
    kOver,       // all given back, refused, or abandoned
  };

  bool ignores_messages() const { return failed_ || refusal_.has_value(); }
  void request_complete();
  void leave_planning();
  void fail(StreamStatus status, std::string message);
  std::optional<Answer> next_of_request();
  BodyAnswer next_body_piece();
  bool charge(std::size_t bytes);
  void discharge();

  const ExtProcLimits& limits_;
  RequestEvents& events_;
  StreamOpening opening_;
  BodyMode response_mode_ = BodyMode::kFullDuplex;

  RequestState request_ = RequestState::kExpectingHeaders;
  HeaderBlock headers_;
  std::optional<std::vector<std::string>> subset_;
  std::shared_ptr<std::string> received_body_;        // being collected
  std::shared_ptr<const std::string> outgoing_body_;  // to be given back
  std::size_t given_back_ = 0;
  bool has_body_ = false;    // the request did not end with its headers
  bool body_ended_ = false;  // by an end-of-stream piece
  bool trailers_ = false;    // came
  bool trailers_answered_ = false;
  bool body_done_ = false;  // every piece was given back
  std::optional<RouteAnswer> route_;
  std::uint64_t charged_ = 0;

  ResponseRelay response_;
  bool response_turn_ = false;  // whose message is next, when both directions have one

  bool failed_ = false;
  std::optional<Refusal> refusal_;
  std::optional<StreamEnd> ended_;
};

}  // namespace handoff::epp
