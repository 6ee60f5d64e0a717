#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "epp/ext_proc/protocol_messages.hpp"

namespace handoff::epp {

// The response half of an exchange: every message is given back at once and in order, and what it means for
// the accounting is told. It also works without a request half (a route that has ext_proc for responses
// only).
//
// Owner and thread: ExtProcStream.
class ResponseRelay {
 public:
  explicit ResponseRelay(RequestEvents& events) : events_(events) {}

  void set_mode(BodyMode mode, bool silent);

  void on_headers(unsigned status, bool event_stream, bool end_of_stream);
  void on_body(std::string bytes, bool end_of_stream);
  void on_trailers();

  bool started() const { return started_; }
  bool ended() const { return ended_; }
  bool has_answer() const { return taken_ < queue_.size(); }
  Answer take();
  // Bytes that wait to be taken, those of the answers themselves included.
  std::size_t backlog() const { return backlog_; }

 private:
  void start(unsigned status, bool event_stream);
  void note_first_byte();
  void end();
  void queue_body(std::string bytes, bool end_of_stream);
  void queue(Answer answer);

  RequestEvents& events_;
  BodyMode mode_ = BodyMode::kFullDuplex;
  bool silent_ = false;
  bool started_ = false;
  bool first_byte_ = false;
  bool body_ended_ = false;
  bool trailers_ = false;  // came
  bool ended_ = false;
  // Begins with those that were taken: nearly always all of them are, before the next one comes.
  std::vector<Answer> queue_;
  std::size_t taken_ = 0;
  std::size_t backlog_ = 0;
};

}  // namespace handoff::epp
