#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace handoff::epp {

// The request-side identity of KV blocks. It depends on nothing but the tokens and the options below, so the
// same prompt has the same hashes in every process, and what an engine publishes can be re-hashed from the
// token ids of its events.

// The multimodal objects of one block, as 64-bit ids in any order. Empty for a block of text.
using BlockMedia = std::vector<std::uint64_t>;

// Views only: they must stay valid during the call that takes them. Empty strings mean absent.
struct HashOptions {
  std::string_view lora_name = {};
  std::string_view cache_salt = {};
  std::span<const BlockMedia> media = {};  // by block; blocks beyond its end have none
  bool is_eagle = false;                   // a block also covers the first token of the next one
};

// `sequence[i]` names the whole prefix up to and including block i, `local[i]` only the block itself.
struct RequestHashes {
  std::vector<std::uint64_t> local;
  std::vector<std::uint64_t> sequence;
};

// The seed that every block of a request with this adapter and salt is hashed with.
std::uint64_t request_seed(std::string_view lora_name, std::string_view cache_salt);

// How many complete blocks `token_count` tokens have; what is left over has no hash. 0 when block_size is 0.
std::size_t complete_blocks(std::size_t token_count, std::uint32_t block_size, bool is_eagle);

// Hash of one block. `tokens` are the block's tokens (with eagle: one more than the block size).
std::uint64_t local_block_hash(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> media,
                               std::uint64_t seed);

// Of consecutive blocks of text, as many as `out` has places for; `tokens` has as many times `block_size`.
void local_block_hashes(std::span<const std::uint32_t> tokens, std::uint32_t block_size, std::uint64_t seed,
                        std::span<std::uint64_t> out);

inline constexpr std::uint64_t kChainSeed = 1337;

// Sequence hash of the block with local hash `local` behind the prefix `parent`. A first block has no parent:
// its sequence hash is its local hash.
std::uint64_t chain_hash(std::uint64_t parent, std::uint64_t local, std::uint64_t seed = kChainSeed);

// The same for consecutive blocks: out[i] for locals[i], where `parent` is before the first of them. nullopt:
// they start a prompt. `out` has room for as many.
void chain_hashes(std::optional<std::uint64_t> parent, std::span<const std::uint64_t> locals,
                  std::uint64_t* out);

// Both kinds for all complete blocks. Reuses the vectors' capacity.
void hash_request(std::span<const std::uint32_t> tokens, std::uint32_t block_size, const HashOptions& options,
                  RequestHashes& out);

// The sequence hashes only: what BlockIndex::match_prefix takes.
std::vector<std::uint64_t> hash_request(std::span<const std::uint32_t> tokens, std::uint32_t block_size,
                                        const HashOptions& options = {});

// The token that stands for each token of a media object where the pad form is used (one run of pads per
// object).
std::uint32_t media_pad_token(std::uint64_t media_hash);

// The 64-bit id of a media identifier of an engine. 64 hex digits: the first 16 of them. Any other non-empty
// text has an id only where the engine marks it as media (`marked`, it came with an offset); nullopt
// otherwise.
std::optional<std::uint64_t> media_id(std::string_view identifier, bool marked);

}  // namespace handoff::epp
