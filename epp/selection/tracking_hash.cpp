#include "epp/selection/tracking_hash.hpp"

#include <cstddef>
#include <string_view>

#include "epp/selection/blake3.hpp"

namespace handoff::epp {
namespace {

// The NUL belongs to it.
constexpr std::string_view kDomain{"dynamo.router.tracking-hash/keyed-xxh3-v1\0", 42};

enum Tag : std::uint8_t { kKeyId = 1, kModel, kGroup, kBlockSize, kSalt, kLora, kEagle };

// Tag, length, bytes: no two contexts have the same frames.
class Frames {
 public:
  Frames() { text(kDomain); }

  void required(Tag tag, std::string_view value) {
    bytes_.push_back(tag);
    length_and_text(value);
  }
  void optional(Tag tag, std::string_view value) {
    bytes_.push_back(tag);
    bytes_.push_back(value.empty() ? 0 : 1);
    if (!value.empty()) length_and_text(value);
  }
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  void text(std::string_view value) { bytes_.insert(bytes_.end(), value.begin(), value.end()); }
  void length_and_text(std::string_view value) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      bytes_.push_back(static_cast<std::uint8_t>(std::uint64_t{value.size()} >> shift));
    }
    text(value);
  }

  std::vector<std::uint8_t> bytes_;
};

std::uint64_t little_endian(std::span<const std::uint8_t, 8> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) value |= std::uint64_t{bytes[i]} << (8 * i);
  return value;
}

}  // namespace

std::vector<std::uint64_t> keyed_tracking_hashes(const TrackingKey& key, const PartitionKey& partition,
                                                 std::span<const std::uint32_t> tokens,
                                                 std::uint32_t block_size, const HashOptions& options) {
  char size_bytes[4];
  for (unsigned i = 0; i < 4; ++i) size_bytes[i] = static_cast<char>(block_size >> (8 * i) & 0xFF);
  const char eagle = options.is_eagle ? 1 : 0;
  Frames frames;
  frames.required(kKeyId, key.key_id);
  frames.required(kModel, partition.model_name);
  frames.required(kGroup, partition.routing_group);
  frames.required(kBlockSize, {size_bytes, sizeof(size_bytes)});
  frames.optional(kSalt, options.cache_salt);
  frames.optional(kLora, options.lora_name);
  frames.required(kEagle, {&eagle, 1});
  const auto digest = blake3_keyed(key.key, frames.bytes());
  const std::span all(digest);
  const std::uint64_t block_seed = little_endian(all.subspan<0, 8>());
  const std::uint64_t chain_seed = little_endian(all.subspan<8, 8>());

  const std::size_t blocks = complete_blocks(tokens.size(), block_size, options.is_eagle);
  const std::size_t window = std::size_t{block_size} + (options.is_eagle ? 1 : 0);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::span<const std::uint64_t> media = i < options.media.size()
                                                     ? std::span<const std::uint64_t>(options.media[i])
                                                     : std::span<const std::uint64_t>();
    const std::uint64_t local = local_block_hash(tokens.subspan(i * block_size, window), media, block_seed);
    hashes.push_back(i == 0 ? local : chain_hash(hashes.back(), local, chain_seed));
  }
  return hashes;
}

}  // namespace handoff::epp
