#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

/// What a context engine says of itself, as far as a generation engine needs it.
struct ContextInfo {
  std::string params;    ///< `disaggregated_params` of its `/server_info`, byte for byte
  std::string endpoint;  ///< its first `ctx_info_endpoint`, a JSON string
};

/// Reads a `/server_info` reply. Nothing when the engine does not say where it is found: then it can't be
/// scheduled after generation.
std::optional<ContextInfo> read_server_info(const sdk::Host& host, std::string_view reply);

/// The answers of context engines, by endpoint: asking costs a round trip. Bounded in number, size and age;
/// forgotten when an engine fails, since a restarted one is found elsewhere. One per backend instance.
class ContextInfoMemory {
 public:
  const ContextInfo* find(const std::string& endpoint, std::uint64_t now_ms);
  void remember(const std::string& endpoint, ContextInfo info, std::uint64_t now_ms);
  void forget(const std::string& endpoint) { known_.erase(endpoint); }

 private:
  struct Entry {
    ContextInfo info;
    std::uint64_t learned_ms = 0;
  };
  std::map<std::string, Entry> known_;
};

}  // namespace handoff::trtllm
