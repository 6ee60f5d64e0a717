#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::endpoints {

/// Key of what is remembered of a request's prefill endpoint. No endpoint's key is a single word.
inline std::string endpoint_key(const handoff_request& request) {
  return std::string(sdk::view(request.prefill_host)) + " " + std::to_string(request.prefill_port);
}

/// What engines said of themselves, by endpoint. It changes with each start of an engine: whoever uses an
/// entry and has to connect anew must ask again (HANDOFF_EVENT_LEG_CONNECTED), and whose connection was there
/// before may rely on it. Bounded. One per backend instance; used on the instance's thread.
template <typename Value>
class EndpointMemory {
 public:
  /// Null if nothing is known, or not any more. Valid until the next call.
  const Value* find(const std::string& endpoint, std::uint64_t now_ms) {
    const auto found = known_.find(endpoint);
    if (found == known_.end()) return nullptr;
    if (now_ms > found->second.known_ms + kMaxAgeMs) {
      known_.erase(found);
      return nullptr;
    }
    return &found->second.value;
  }

  void remember(const std::string& endpoint, Value value, std::uint64_t now_ms) {
    if (known_.size() >= kMaxEntries && known_.count(endpoint) == 0) {
      known_.erase(std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
        return a.second.known_ms < b.second.known_ms;
      }));
    }
    known_[endpoint] = {std::move(value), now_ms};
  }

  /// An exchange went well that could not have done so with another value: the engine is still the one that
  /// said it, so that busy endpoints need not be asked again.
  void confirm(const std::string& endpoint, const Value& value, std::uint64_t now_ms) {
    const auto found = known_.find(endpoint);
    if (found != known_.end() && found->second.value == value) found->second.known_ms = now_ms;
  }

  void forget(const std::string& endpoint) { known_.erase(endpoint); }

 private:
  static constexpr std::uint64_t kMaxAgeMs = 5000;
  static constexpr std::size_t kMaxEntries = 1024;

  struct Entry {
    Value value;
    std::uint64_t known_ms = 0;
  };
  std::map<std::string, Entry> known_;
};

}  // namespace handoff::endpoints
