#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {

/// Where a request's items meet: the members that both engines get, as JSON text, and the ids that end it.
struct Pairing {
  std::vector<std::string> rids;  ///< one per item, 32 hexadecimal digits: engines match aborts by prefix
  std::string rid;
  std::string room;
  std::string host;
  std::string port;
};

struct PairingTerms {
  std::optional<std::size_t> items;  ///< as in RequestShape
  std::string_view prefill_host;     ///< bare: no brackets around IPv6
  std::uint32_t bootstrap_port = 0;
  /// A prefill rank that was chosen: the engine takes the rank from the room.
  std::optional<std::uint32_t> prefill_rank;
  std::uint32_t prefill_ranks = 1;
};

/// Fresh ids and rooms. A room is 63 random bits: two live requests with the same one end both engines, and
/// its rest by the number of ranks spreads the load over them. It is spelled as an integer, never as a
/// double.
Pairing new_pairing(const sdk::Host& host, const PairingTerms& terms);

}  // namespace handoff::sglang
