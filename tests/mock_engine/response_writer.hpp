// Writes one HTTP/1.1 response by hand, so that every kind of broken response can be written too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "async.hpp"
#include "fault_rules.hpp"

namespace handoff::mock {

// Thrown when a fault (or the peer) ended the connection in the middle of a response. Caught by HttpSession.
struct ConnectionEnded {
  bool reset = false;
};

// What the request said about the response.
struct ResponseTerms {
  bool http10 = false;
  bool keep_alive = true;
  bool accepts_gzip = false;
};

// Lives for one request inside HttpSession. Either full() once, or begin_stream(), piece()…, end_stream().
class ResponseWriter {
 public:
  ResponseWriter(tcp::socket& socket, ResponseTerms terms, const FaultPlan& plan)
      : socket_(socket), terms_(terms), plan_(plan) {}

  Awaitable<void> informational(InformationalHeads heads);
  Awaitable<void> full(int status, std::string content_type, HeaderList headers, std::string body);
  Awaitable<void> begin_stream(int status, std::string content_type, HeaderList headers);
  Awaitable<void> piece(std::string data);
  Awaitable<void> end_stream();

  // False when the connection has to be closed after this response.
  bool keep_alive() const { return terms_.keep_alive; }
  int status() const { return status_; }
  // The control API answers soundly whatever the rules say.
  void force_close() { terms_.keep_alive = false; }

 private:
  enum class BodyMode { kLength, kChunked, kUntilClose };

  BodyMode choose_mode(bool length_known);
  std::string head(int status, const std::string& content_type, const HeaderList& headers, BodyMode mode,
                   std::uint64_t length);
  std::string framed(std::string data) const;
  Awaitable<void> send(std::string data);
  Awaitable<void> send_slice(std::string_view data);
  Awaitable<void> cut();

  tcp::socket& socket_;
  ResponseTerms terms_;
  const FaultPlan& plan_;
  BodyMode mode_ = BodyMode::kLength;
  int status_ = 0;
  std::uint64_t sent_ = 0;
  std::size_t trickled_ = 0;  // slices
  std::uint64_t head_size_ = 0;
  bool head_known_ = false;
};

}  // namespace handoff::mock
