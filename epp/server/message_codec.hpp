#pragma once

#include <cstdint>
#include <memory>

#include "epp/ext_proc/ext_proc_stream.hpp"

namespace envoy::service::ext_proc::v3 {
class ProcessingRequest;
class ProcessingResponse;
}  // namespace envoy::service::ext_proc::v3

namespace handoff::epp {

using WireRequest = envoy::service::ext_proc::v3::ProcessingRequest;
using WireResponse = envoy::service::ext_proc::v3::ProcessingResponse;

// Hands a message to the protocol; bodies are moved out of it. `is_first`: the stream's first message.
void deliver(WireRequest& message, bool is_first, ExtProcStream& stream);

// Messages in memory that is used again: an Endpoint Picker's messages are all alike, and to build one from
// nothing is dozens of allocations.
//
// Owner: a queue; its thread only.
class MessageCodec {
 public:
  // `retry_after_secs`: 0 leaves the header out.
  explicit MessageCodec(std::uint64_t retry_after_secs);
  ~MessageCodec();

  // An empty message to be read into. It is gone when the next one is asked for.
  WireRequest& fresh_request();
  // Valid until the next call.
  const WireResponse& encode(Answer&& answer);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace handoff::epp
