#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace handoff::epp {

// One message of a publisher, live or replayed.
struct KvMessage {
  std::uint64_t sequence = 0;
  std::span<const std::byte> payload;
  bool ends_replay = false;
};

using KvFrame = std::span<const std::byte>;

// [topic, sequence, payload]; the topic may be anything.
std::optional<KvMessage> parse_live_message(std::span<const KvFrame> frames);
// ["", sequence, payload] or ["", topic, sequence, payload]: what counts are the last two frames. An empty
// payload ends it.
std::optional<KvMessage> parse_replayed_message(std::span<const KvFrame> frames);

}  // namespace handoff::epp
