#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "epp/ext_proc/ext_proc_stream.hpp"

namespace handoff::epp {

// Writes down what it is told, one word per event, and answers when the test says so.
class RecordedEvents final : public RequestEvents {
 public:
  void on_request(ReceivedRequest received) override {
    log.push_back("request");
    request = std::move(received);
    if (stream != nullptr && answer_at_once) {
      RouteAnswer answer;
      answer.destination = "10.0.0.7:8000";
      accepted = stream->route(std::move(answer));
    }
  }
  void on_abandoned() override { log.push_back("abandoned"); }
  void on_response_started(unsigned status, bool event_stream) override {
    log.push_back("started " + std::to_string(status) + (event_stream ? " sse" : ""));
  }
  void on_first_response_byte() override { log.push_back("first byte"); }
  void on_response_bytes(std::string_view bytes) override { response += bytes; }
  void on_served_endpoint(std::string_view endpoint) override {
    log.push_back("served " + std::string(endpoint));
  }
  void on_response_ended() override { log.push_back("ended"); }

  ExtProcStream* stream = nullptr;
  bool answer_at_once = true;
  bool accepted = false;
  ReceivedRequest request;
  std::string response;
  std::vector<std::string> log;
};

// One stream and its gateway side: answers as short texts.
class ExtProcFixture : public ::testing::Test {
 protected:
  ExtProcFixture() {
    limits.buffered_bytes = &buffered;
    events.stream = &stream;
  }

  static HeaderBlock head(std::vector<std::pair<std::string, std::string>> more = {}) {
    HeaderBlock headers;
    headers.add(":method", "POST");
    headers.add(":path", "/v1/chat/completions");
    for (const auto& [name, value] : more) headers.add(name, value);
    return headers;
  }
  static RouteAnswer to(std::string destination) {
    RouteAnswer answer;
    answer.destination = std::move(destination);
    return answer;
  }

  static std::string text_of(const Answer& answer) {
    const auto side = [](Direction direction) {
      return direction == Direction::kRequest ? std::string("request ") : std::string("response ");
    };
    if (const auto* headers = std::get_if<HeadersAnswer>(&answer)) {
      return side(headers->direction) + "headers" + (headers->route ? " " + headers->route->destination : "");
    }
    if (const auto* body = std::get_if<BodyAnswer>(&answer)) {
      if (!body->streamed) return side(body->direction) + "continue";
      const bool is_long = body->bytes.size() > 20;
      return side(body->direction) + "body [" + (is_long ? std::to_string(body->bytes.size()) : body->bytes) +
             "]" + (body->end_of_stream ? " end" : "");
    }
    if (const auto* trailers = std::get_if<TrailersAnswer>(&answer))
      return side(trailers->direction) + "trailers";
    return "refused " + std::to_string(row_of(std::get<Refusal>(answer).error).status);
  }
  std::vector<std::string> answers() {
    std::vector<std::string> texts;
    while (auto answer = stream.next()) texts.push_back(text_of(*answer));
    return texts;
  }
  std::string taken_body() {
    std::string body;
    while (auto answer = stream.next()) {
      if (auto* piece = std::get_if<BodyAnswer>(&*answer)) {
        EXPECT_LE(piece->bytes.size(), kMaxBodyPiece);
        EXPECT_FALSE(last_piece_seen_) << "a piece after the end";
        body += piece->bytes;
        last_piece_seen_ = piece->end_of_stream;
      }
    }
    return body;
  }

  std::atomic<std::uint64_t> buffered{0};
  ExtProcLimits limits;
  RecordedEvents events;
  ExtProcStream stream{limits, events};
  bool last_piece_seen_ = false;
};

using Texts = std::vector<std::string>;

}  // namespace handoff::epp
