#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace handoff::epp::test {

// Events as each generation of the engines writes them. The bytes are made by a library of its own
// (nlohmann), so that writer and reader can't agree on a mistake. Dates and shapes: vLLM's event classes and
// SGLang's, May 2025 to September 2026.
using Json = nlohmann::json;
using Payload = std::vector<std::byte>;

inline Payload pack(const Json& value) {
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(value);
  Payload payload(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) payload[i] = static_cast<std::byte>(bytes[i]);
  return payload;
}

// No Json for the list: one two-element array in it would be taken for an object.
inline Payload batch(std::initializer_list<Json> events, Json rank = 0, double timestamp = 1'700'000'000.25) {
  return pack(Json::array({timestamp, Json(Json::array_t(events)), std::move(rank)}));
}

struct Stored {
  std::vector<std::uint64_t> hashes;
  Json parent = nullptr;
  std::vector<std::uint32_t> tokens;
  std::uint32_t block_size = 4;
  Json medium = "GPU";
  Json lora_name = nullptr;
  Json extra_keys = nullptr;
  Json group = nullptr;
  Json kind = nullptr;
  Json window = nullptr;
  Json locality = nullptr;
  Json cache_salt = nullptr;
};

inline Json as_signed(const std::vector<std::uint64_t>& hashes) {
  Json list = Json::array();
  for (const std::uint64_t hash : hashes) list.push_back(static_cast<std::int64_t>(hash));
  return list;
}

// 32-byte digests whose low 64 bits are the given hashes: what vLLM sends when integer hashes are turned off.
inline Json digest(std::uint64_t hash) {
  std::vector<std::uint8_t> bytes(32, 0xAB);
  for (std::size_t i = 0; i < 8; ++i) bytes[24 + i] = static_cast<std::uint8_t>(hash >> (56 - 8 * i));
  return Json::binary(bytes);
}
inline Json as_digests(const std::vector<std::uint64_t>& hashes) {
  Json list = Json::array();
  for (const std::uint64_t hash : hashes) list.push_back(digest(hash));
  return list;
}

enum class Generation {
  vllm_2025_04,  // arrays of 6
  vllm_2025_09,  // 7: medium
  vllm_2025_12,  // 8: lora_name
  vllm_2026_02,  // 9: extra_keys
  vllm_2026_04,  // 10: group
  vllm_2026_05,  // 12: kind, window
  vllm_2026_06,  // maps
  vllm_digests,  // maps, hashes as bytes
  sglang_array,  // 7, signed hashes; an 8th element only for a salt
  sglang_map     // signed hashes
};

inline constexpr Generation kGenerations[] = {
    Generation::vllm_2025_04, Generation::vllm_2025_09, Generation::vllm_2025_12, Generation::vllm_2026_02,
    Generation::vllm_2026_04, Generation::vllm_2026_05, Generation::vllm_2026_06, Generation::vllm_digests,
    Generation::sglang_array, Generation::sglang_map};

inline bool is_map(Generation generation) {
  return generation == Generation::vllm_2026_06 || generation == Generation::vllm_digests ||
         generation == Generation::sglang_map;
}
inline bool is_sglang(Generation generation) {
  return generation == Generation::sglang_array || generation == Generation::sglang_map;
}

inline Json hashes_of(Generation generation, const std::vector<std::uint64_t>& hashes) {
  if (is_sglang(generation)) return as_signed(hashes);
  if (generation == Generation::vllm_digests) return as_digests(hashes);
  return hashes;
}

inline Json parent_of(Generation generation, const Json& parent) {
  if (parent.is_null()) return parent;
  return hashes_of(generation, {parent.get<std::uint64_t>()})[0];
}

inline Json stored_event(Generation generation, const Stored& event) {
  const Json hashes = hashes_of(generation, event.hashes);
  const Json parent = parent_of(generation, event.parent);
  if (is_map(generation)) {
    Json map = {{"type", "BlockStored"},     {"block_hashes", hashes},         {"parent_block_hash", parent},
                {"token_ids", event.tokens}, {"block_size", event.block_size}, {"lora_id", nullptr},
                {"medium", event.medium}};
    if (!is_sglang(generation)) map["lora_name"] = event.lora_name;
    // Declared defaults are left out.
    const std::pair<const char*, const Json*> optional[] = {
        {"extra_keys", &event.extra_keys},   {"group_idx", &event.group},
        {"kv_cache_spec_kind", &event.kind}, {"kv_cache_spec_sliding_window", &event.window},
        {"locality", &event.locality},       {"cache_salt", &event.cache_salt}};
    for (const auto& [name, value] : optional) {
      if (!value->is_null()) map[name] = *value;
    }
    return map;
  }
  Json array = Json::array({"BlockStored", hashes, parent, event.tokens, event.block_size, nullptr});
  if (generation >= Generation::vllm_2025_09) array.push_back(event.medium);
  if (generation == Generation::sglang_array) {
    if (!event.cache_salt.is_null()) array.push_back({{"cache_salt", event.cache_salt}});
    return array;
  }
  if (generation >= Generation::vllm_2025_12) array.push_back(event.lora_name);
  if (generation >= Generation::vllm_2026_02) array.push_back(event.extra_keys);
  if (generation >= Generation::vllm_2026_04) array.push_back(event.group);
  if (generation >= Generation::vllm_2026_05) {
    array.push_back(event.kind);
    array.push_back(event.window);
  }
  return array;
}

inline Json removed_event(Generation generation, const std::vector<std::uint64_t>& hashes,
                          const Json& medium = "GPU", const Json& group = nullptr) {
  const Json list = hashes_of(generation, hashes);
  if (is_map(generation)) {
    Json map = {{"type", "BlockRemoved"}, {"block_hashes", list}, {"medium", medium}};
    if (!group.is_null()) map["group_idx"] = group;
    return map;
  }
  Json array = Json::array({"BlockRemoved", list});
  if (generation >= Generation::vllm_2025_09) array.push_back(medium);
  if (generation >= Generation::vllm_2026_04 && generation < Generation::vllm_2026_06) array.push_back(group);
  return array;
}

inline Json cleared_event(Generation generation) {
  if (is_map(generation)) return {{"type", "AllBlocksCleared"}};
  return Json::array({"AllBlocksCleared"});
}

}  // namespace handoff::epp::test
