#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "epp/ext_proc/epp_error.hpp"
#include "epp/ext_proc/header_block.hpp"

namespace handoff::epp {

// Larger pieces of a body made Envoy answer 500 (gateway-api-inference-extension #854, #2056).
inline constexpr std::size_t kMaxBodyPiece = 62'000;

// Numbers of ProcessingMode.BodySendMode.
enum class BodyMode : std::uint8_t {
  kNone = 0,
  kStreamed = 1,
  kBuffered = 2,
  kBufferedPartial = 3,
  kFullDuplex = 4,
  kGrpc = 5,
};

struct BodyModes {
  BodyMode request = BodyMode::kFullDuplex;
  BodyMode response = BodyMode::kFullDuplex;
};

// What only the first message of a stream says.
struct StreamOpening {
  std::optional<BodyModes> modes;  // absent: full duplex both ways
  bool observability = false;      // nothing may be answered
};

enum class Direction : std::uint8_t { kRequest, kResponse };

// Where a request goes.
struct RouteAnswer {
  std::string destination;  // one socket address
  // Beside the destination. Names are constants.
  std::vector<std::pair<std::string_view, std::string>> set_headers;
  std::shared_ptr<const std::string> replaced_body;  // null: the body passes byte by byte
};

// Why a request goes nowhere.
struct Refusal {
  EppError error = EppError::internal_error;
  std::string message;  // for the client; empty: the error's own
};

// Messages to the gateway. One kind of struct per shape, whichever direction it is for.
struct HeadersAnswer {
  Direction direction = Direction::kRequest;
  std::optional<RouteAnswer> route;  // request only; without one the message is a plain "continue"
};
struct BodyAnswer {
  Direction direction = Direction::kRequest;
  bool streamed = true;  // false: a plain "continue", for a mode in which the gateway keeps the body
  std::string bytes;
  bool end_of_stream = false;
};
struct TrailersAnswer {
  Direction direction = Direction::kRequest;
};
using Answer = std::variant<HeadersAnswer, BodyAnswer, TrailersAnswer, Refusal>;

// How a stream ends from our side, with the numbers of gRPC's statuses.
enum class StreamStatus : std::uint8_t { kOk = 0, kInvalidArgument = 3, kFailedPrecondition = 9 };
struct StreamEnd {
  StreamStatus status = StreamStatus::kOk;
  std::string message;
};

// A request that has come in completely.
struct ReceivedRequest {
  HeaderBlock headers;
  std::shared_ptr<const std::string> body;  // null for a request that has none (it ended with its headers)
  std::optional<std::vector<std::string>> subset;  // endpoints the gateway allows; absent: all
  bool observed = false;  // it goes where it goes: only what it does to the load is of interest
};

// What happens on a stream, for whoever plans and accounts. Calls come on the stream's thread, from inside
// its on_*() calls.
class RequestEvents {
 public:
  virtual ~RequestEvents() = default;
  // To be answered with ExtProcStream::route() or refuse(), from inside this call or later.
  virtual void on_request(ReceivedRequest request) = 0;
  // A response came although the request has no answer yet: the gateway answered it by itself, so whatever
  // was started for it is not needed.
  virtual void on_abandoned() = 0;
  virtual void on_response_started(unsigned status, bool event_stream) = 0;
  virtual void on_first_response_byte() = 0;
  virtual void on_response_bytes(std::string_view bytes) = 0;
  virtual void on_served_endpoint(std::string_view endpoint) = 0;
  // The response is complete.
  virtual void on_response_ended() = 0;
};

}  // namespace handoff::epp
