// What both NIXL connectors do alike: P pins a finished prompt under its request id and says where.
#pragma once

#include <functional>
#include <string>

#include "kv_connector.hpp"

namespace handoff::mock {

// Tells of each pinned prompt: the id without the engine's random digits, and with.
using OnPinned = std::function<void(const std::string& base, const std::string& full)>;

// The prefill leg. `on_pinned` outlives it.
std::unique_ptr<KvTransfer> begin_nixl_prefill(Engine& engine, KvRequest request, const OnPinned& on_pinned);

// The engine tells P that nobody will come for the blocks, as it does since the release that fixed this leak.
void release_rejected_handoff(Engine& engine, const Json& body);

// vLLM's id of one prompt of a request, without its random digits.
std::string base_request_id(const KvRequest& request, std::size_t prompt);

}  // namespace handoff::mock
