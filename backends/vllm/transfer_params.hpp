#pragma once

#include <string>
#include <string_view>

#include "backends/vllm/connector.hpp"
#include "backends/vllm/prefill_memory.hpp"

// `kv_transfer_params` of the connectors whose two requests are paired by a name that we make.
namespace handoff::vllm {

/// Values of `kv_transfer_params` for the two legs, as JSON.
struct TransferParams {
  std::string prefill;
  std::string decode;
};

/// A host and a port in JSON strings: `host` has no characters that need escaping (it passed the grammar of
/// the routing header), and no brackets around IPv6.
TransferParams offloading_params(std::string_view kv_request_id, std::string_view prefill_host,
                                 std::uint32_t p2p_port);
/// `engine_id` is a JSON string, as the bootstrap server gave it.
TransferParams mooncake_params(std::string_view transfer_id, std::string_view prefill_host,
                               std::uint32_t bootstrap_port, std::string_view engine_id);

/// What decode is told of a prefill engine that pushes, before that has answered. `request_id` stands for
/// prefill's own, which nobody knows yet and which only has to be there.
std::string push_params(const PushAddress& address, std::string_view request_id);

/// The request id of both legs where the engines pair them by it (NIXL push): the client's, and 64 random
/// bits. Two requests of one id would get each other's blocks.
std::string pairing_id(const sdk::Host& host, const handoff_request& request);

}  // namespace handoff::vllm
