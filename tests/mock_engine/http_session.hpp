// One HTTP connection: read a request, consult the fault rules, answer it, and notice when the peer leaves
// meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "exchange.hpp"

namespace handoff::mock {

// Owned by its own coroutine (run() keeps a shared_ptr); HttpListener holds a plain pointer from construction
// to destruction, to be able to reset it. Single thread.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(Services& services, tcp::socket socket, std::int64_t id, Door door);

  Awaitable<void> run();
  // RST, from outside.
  void reset();
  std::int64_t id() const { return id_; }

 private:
  enum class ReadResult { kRequest, kEnd, kMalformed, kTooLarge };
  enum class AnswerEnd { kDone, kClose, kReset };
  struct Incoming;

  Awaitable<bool> serve_one();
  Awaitable<bool> read_some();
  Awaitable<bool> wait_for_request();
  Awaitable<ReadResult> read_head(Incoming& incoming);
  Awaitable<ReadResult> read_body(Incoming& incoming);
  Awaitable<bool> answer(Incoming& incoming);
  Awaitable<AnswerEnd> dispatch_to_end(Exchange& exchange, const FaultPlan& plan);
  Awaitable<void> dispatch(Exchange& exchange, const FaultPlan& plan);
  Awaitable<void> answer_early(Incoming& incoming, CannedReply reply);
  Awaitable<void> peer_left();
  Awaitable<void> refuse(int status, std::string text);
  Awaitable<void> close_gently();

  Services& services_;
  tcp::socket socket_;
  std::int64_t id_;
  Door door_;
  std::string buffer_;  // received, not yet parsed
};

}  // namespace handoff::mock
