#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {

enum class EngineMode : std::uint8_t { unknown, unified, prefill, decode };

/// What an engine's `/server_info` says of itself.
struct EngineInfo {
  EngineMode mode = EngineMode::unknown;
  std::uint32_t bootstrap_port = 0;  ///< 0: not told
  std::uint32_t ranks = 1;           ///< data-parallel size
  std::string version;               ///< empty: not told
};

/// Reads the reply; mode `unknown` when it is not what an engine says.
EngineInfo read_server_info(const sdk::Host& host, std::string_view reply);

/// What engines said, by endpoint: two extra round trips per request are too many. Bounded in number and age,
/// and forgotten when an engine fails, since another may listen there by then. One per backend instance.
class EngineMemory {
 public:
  /// Null: never heard, forgotten, or too long ago.
  const EngineInfo* find(const std::string& endpoint, std::uint64_t now_ms);
  void remember(const std::string& endpoint, EngineInfo info, std::uint64_t now_ms);
  void forget(const std::string& endpoint) { known_.erase(endpoint); }

 private:
  struct Entry {
    EngineInfo info;
    std::uint64_t heard_ms = 0;
  };
  std::map<std::string, Entry> known_;
};

}  // namespace handoff::sglang
