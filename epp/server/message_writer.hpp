#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "epp/ext_proc/protocol_messages.hpp"

namespace handoff::epp {

// Writes the Endpoint Picker's messages (ProcessingResponse) straight into bytes: they are all alike, so most
// of each is there before the request comes.
//
// Owner: a queue; its thread only. Its memory is used again for each message.
class MessageWriter {
 public:
  // `retry_after_secs`: 0 leaves the header out of refusals.
  explicit MessageWriter(std::uint64_t retry_after_secs);

  // A message is these three, one after the other; a body stays where it is.
  struct Encoded {
    std::string_view head;
    std::string_view body;
    std::string_view tail;

    std::size_t size() const { return head.size() + body.size() + tail.size(); }
  };
  // Valid until the next call and while the answer is there.
  Encoded encode(const Answer& answer);

 private:
  Encoded encode_route(const RouteAnswer& route);
  Encoded encode_piece(const BodyAnswer& piece);
  Encoded encode_refusal(const Refusal& refusal);
  void append_set_header(std::string_view name, std::string_view value);

  const std::uint64_t retry_after_secs_;
  // By direction: "go on" without any change.
  std::array<std::string, 2> plain_headers_;
  std::array<std::string, 2> plain_body_;
  std::array<std::string, 2> plain_trailers_;
  std::string never_set_;  // fields of a HeaderMutation that remove what no answer sets

  std::string text_;      // the message at hand
  std::string mutation_;  // its HeaderMutation
};

}  // namespace handoff::epp
