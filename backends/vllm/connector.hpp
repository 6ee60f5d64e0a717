#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backends/missing_handoff/missing_handoff.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// How KV blocks get from prefill to decode (`--kv-transfer-config`).
enum class Connector : std::uint8_t {
  nixl,            ///< NixlConnector: decode pulls what the prefill reply names
  nixl_push,       ///< NixlPushConnector: prefill writes to decode, which registers there
  mooncake,        ///< MooncakeConnector: both at once, paired by `transfer_id`
  shared_storage,  ///< a store that both read: prefill fills it, nothing is handed over
  offloading,      ///< OffloadingConnector with a P2P tier, paired by `kv_request_id`
};

/// Every connector, as the setting spells it.
inline constexpr std::string_view kConnectors = "nixl,nixl-push,mooncake,shared-storage,offloading";
inline constexpr std::string_view kConnectorNames[] = {"nixl", "nixl-push", "mooncake", "shared-storage",
                                                       "offloading"};

/// Whether prefill's reply brings the handoff.
constexpr bool is_nixl(Connector connector) {
  return connector == Connector::nixl || connector == Connector::nixl_push;
}

/// NIXL push: whether decode is asked before prefill has answered, where prefill's address is known.
enum class PushOrder : std::uint8_t { prefill_first, concurrent };

/// Constant after create().
struct Settings {
  Connector connector = Connector::nixl;
  missing_handoff::Policy on_missing_handoff = missing_handoff::Policy::decode_only;
  PushOrder push_order = PushOrder::prefill_first;
  bool reuse_tokens = false;            ///< chat: decode gets prefill's token ids
  std::uint32_t bootstrap_port = 8998;  ///< Mooncake: of the prefill host, HTTP
  std::uint32_t p2p_port = 5710;        ///< offloading: side channel of the prefill host, of rank 0
};

/// 128 random bits as 32 hexadecimal digits.
std::string random_name(const sdk::Host& host);

}  // namespace handoff::vllm
