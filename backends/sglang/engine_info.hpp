#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backends/endpoints/endpoint_memory.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {

enum class EngineMode : std::uint8_t { unknown, unified, prefill, decode };

/// What an engine's `/server_info` says of itself.
struct EngineInfo {
  EngineMode mode = EngineMode::unknown;
  std::uint32_t bootstrap_port = 0;  ///< 0: not told
  std::uint32_t ranks = 1;           ///< data-parallel size
  std::string version;               ///< empty: not told

  bool operator==(const EngineInfo& other) const = default;
};

/// Reads the reply; mode `unknown` when it is not what an engine says.
EngineInfo read_server_info(const sdk::Host& host, std::string_view reply);

/// What engines said: two extra round trips per request are too many.
using EngineMemory = endpoints::EndpointMemory<EngineInfo>;

}  // namespace handoff::sglang
