#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace handoff::epp {

// KV-cache events as vLLM, SGLang and TensorRT-LLM publish them: bytes in, plain structs out, no sockets and
// no opinion about what is to be done with them. Every encoding since 2025 is read: events as arrays of any
// historic length or as maps, hashes as signed or unsigned integers or bytes, token ids as integers or pairs.

// Part of one of the batch's flat vectors.
struct KvRange {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
};

enum class KvEventKind : std::uint8_t { stored, removed, cleared };

// Something beside its tokens that makes a block what it is.
struct KvExtraKey {
  std::uint32_t block = 0;  // of the event
  std::string_view text;    // empty: `media` is given as a number
  bool is_marked = false;   // came with an offset, which only media do
  std::uint64_t media = 0;
};

struct KvEvent {
  KvEventKind kind = KvEventKind::cleared;
  KvRange hashes;
  std::optional<std::uint64_t> parent;
  KvRange tokens;                 // all blocks' one after the other
  bool tokens_are_pairs = false;  // bigrams: `tokens` are the first ones and, at the end, the last second one
  bool tokens_unusable = false;   // some were no 32-bit numbers
  std::uint32_t block_size = 0;
  std::string_view medium;
  std::string_view lora_name;
  std::string_view cache_salt;
  std::string_view attention_kind;
  std::string_view locality;
  std::optional<std::uint64_t> group;
  KvRange extra_keys;
};

// Reused from batch to batch. The texts are views into the payload.
struct KvEventBatch {
  double timestamp = 0;  // seconds since the epoch, by the engine's clock
  std::optional<std::uint32_t> rank;
  std::vector<KvEvent> events;
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint32_t> tokens;
  std::vector<KvExtraKey> extra_keys;
  std::size_t unknown_events = 0;  // of a type that we don't know: skipped

  std::span<const std::uint64_t> hashes_of(const KvEvent& event) const {
    return std::span(hashes).subspan(event.hashes.begin, event.hashes.count);
  }
  std::span<const std::uint32_t> tokens_of(const KvEvent& event) const {
    return std::span(tokens).subspan(event.tokens.begin, event.tokens.count);
  }
  std::span<const KvExtraKey> extra_keys_of(const KvEvent& event) const {
    return std::span(extra_keys).subspan(event.extra_keys.begin, event.extra_keys.count);
  }
};

// What a batch may hold; beyond that it counts as broken. A full cache announced in one go stays far below.
inline constexpr std::size_t kMaxKvPayloadBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxKvEvents = std::size_t{1} << 16;
inline constexpr std::size_t kMaxKvHashes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxKvExtraKeys = std::size_t{1} << 18;

// False: not a batch of events. Then nothing of it may be used, because what is missing could be a removal.
bool decode_kv_events(std::span<const std::byte> payload, KvEventBatch& batch);

}  // namespace handoff::epp
