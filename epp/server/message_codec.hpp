#pragma once

#include <cstdint>
#include <string>

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

// Writes an answer into `out`, whose memory is used again. `retry_after_secs`: 0 leaves the header out.
void encode(Answer&& answer, std::uint64_t retry_after_secs, WireResponse& out);

}  // namespace handoff::epp
