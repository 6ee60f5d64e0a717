#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// A data-parallel rank of a prefill endpoint.
struct PrefillRank {
  std::string rank;       ///< decimal
  std::string engine_id;  ///< a JSON string
};

/// Reads the reply of a Mooncake bootstrap server's `/query`; empty if it has no rank.
std::vector<PrefillRank> read_bootstrap(const sdk::Host& host, std::string_view reply);

/// What bootstrap servers said, by prefill endpoint. Engine ids change with each start of an engine, so
/// entries are dropped when a leg fails, and after a minute. Bounded. One per backend instance.
class BootstrapMemory {
 public:
  const std::vector<PrefillRank>* find(const std::string& endpoint, std::uint64_t now_ms);
  void remember(const std::string& endpoint, std::vector<PrefillRank> ranks, std::uint64_t now_ms);
  void forget(const std::string& endpoint) { known_.erase(endpoint); }

 private:
  struct Entry {
    std::vector<PrefillRank> ranks;
    std::uint64_t learned_ms = 0;
  };
  std::map<std::string, Entry> known_;
};

}  // namespace handoff::vllm
