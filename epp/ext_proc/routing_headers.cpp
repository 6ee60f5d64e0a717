#include "epp/ext_proc/routing_headers.hpp"

#include <array>
#include <cstddef>

namespace handoff::epp {
namespace {

// The destination itself is missing on purpose: every answer overwrites it.
constexpr std::array<std::string_view, 15> kControlled = {
    kPrefillHeader,
    kRankHeader,
    kPrefillRankHeader,
    kEngineRankHeader,
    "x-data-parallel-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-dynamo-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-routing-mode",
    "x-gateway-inference-fairness-id",
    "x-gateway-inference-objective",
    "x-gateway-model-name-rewrite",
    kSubsetKey,
    kServedKey,
};

constexpr std::size_t kSettable = 4;  // the first ones

}  // namespace

std::span<const std::string_view> controlled_headers() {
  return kControlled;
}

std::span<const std::string_view> settable_headers() {
  return controlled_headers().first(kSettable);
}

}  // namespace handoff::epp
