// The ordered log of received requests behind GET /mock/requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "fault_rules.hpp"

namespace handoff::mock {

struct LoggedRequest {
  std::int64_t seq = 0;
  std::int64_t connection = 0;
  std::string method;
  std::string target;
  std::string version;
  HeaderList headers;
  std::string body;
  std::string framing = "none";
  Leg leg = Leg::kPlain;
  bool complete = false;
  double start_ms = 0, body_ms = -1, end_ms = -1;
  int status = 0;
  std::string outcome = "open";
};

// Bounded by number and by bytes of bodies; the oldest entries go first. Owned by main(), single thread. An
// entry is shared with the session that is still filling it, because the log may drop it meanwhile.
class RequestLog {
 public:
  std::shared_ptr<LoggedRequest> open(std::int64_t connection);
  // Counts the entry's body and drops old entries when there is too much.
  void body_complete(LoggedRequest& entry);
  void clear();
  Reply list() const;

  static double now_ms();

 private:
  void trim();

  std::deque<std::shared_ptr<LoggedRequest>> entries_;
  std::size_t bytes_ = 0;  // of complete bodies in entries_
  std::int64_t next_seq_ = 1;
  std::int64_t dropped_ = 0;
};

}  // namespace handoff::mock
