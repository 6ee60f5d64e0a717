#include "epp/kv_index/kv_message.hpp"

namespace handoff::epp {

namespace {

constexpr std::size_t kSequenceBytes = 8;
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};  // -1

std::optional<KvMessage> message_of(KvFrame sequence, KvFrame payload) {
  if (sequence.size() != kSequenceBytes) return std::nullopt;
  std::uint64_t number = 0;  // big-endian
  for (const std::byte byte : sequence) number = number << 8 | std::to_integer<std::uint64_t>(byte);
  return KvMessage{number, payload, false};
}

}  // namespace

std::optional<KvMessage> parse_live_message(std::span<const KvFrame> frames) {
  if (frames.size() != 3) return std::nullopt;
  return message_of(frames[1], frames[2]);
}

std::optional<KvMessage> parse_replayed_message(std::span<const KvFrame> frames) {
  if (frames.size() < 3 || frames.size() > 4) return std::nullopt;
  auto message = message_of(frames[frames.size() - 2], frames.back());
  if (message) message->ends_replay = message->payload.empty() || message->sequence == kEndOfReplay;
  return message;
}

}  // namespace handoff::epp
