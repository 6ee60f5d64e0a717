#include "kv_event_format.hpp"

#include <utility>

namespace handoff::mock {
namespace {

std::uint64_t big_endian(const BlockDigest& digest, std::size_t from) {
  std::uint64_t value = 0;
  for (std::size_t i = from; i < from + 8; ++i) value = value << 8 | digest[i];
  return value;
}

// vLLM: the low 64 bits or all 32 bytes. SGLang: the first eight bytes, signed.
nlohmann::json hash_value(const BlockDigest& digest, KvEventFormat format, KvHashKind kind) {
  if (is_sglang(format)) return static_cast<std::int64_t>(big_endian(digest, 0));
  if (kind == KvHashKind::kInt) return big_endian(digest, 24);
  return nlohmann::json::binary(std::vector<std::uint8_t>(digest.begin(), digest.end()));
}

nlohmann::json hash_list(const CacheEvent& event, KvEventFormat format, KvHashKind kind) {
  nlohmann::json list = nlohmann::json::array();
  for (const BlockDigest& digest : is_sglang(format) ? event.plain : event.blocks)
    list.push_back(hash_value(digest, format, kind));
  return list;
}

nlohmann::json parent_value(const CacheEvent& event, KvEventFormat format, KvHashKind kind) {
  const auto& parent = is_sglang(format) ? event.plain_parent : event.parent;
  return parent ? hash_value(*parent, format, kind) : nlohmann::json(nullptr);
}

// vLLM's list per block; the salt is an extra key of a prompt's first block. Null: no block has any.
nlohmann::json extra_keys(const CacheEvent& event) {
  if (event.salt.empty() || event.parent) return nullptr;
  nlohmann::json list = nlohmann::json::array();
  nlohmann::json first = nlohmann::json::array();
  first.push_back(event.salt);
  list.push_back(std::move(first));
  for (std::size_t i = 1; i < event.blocks.size(); ++i) list.push_back(nullptr);
  return list;
}

nlohmann::json stored_map(const CacheEvent& event, KvEventFormat format, KvHashKind kind,
                          std::int64_t block_size) {
  nlohmann::json map{
      {"type", "BlockStored"}, {"block_size", block_size}, {"lora_id", nullptr}, {"medium", "GPU"}};
  map["block_hashes"] = hash_list(event, format, kind);
  map["parent_block_hash"] = parent_value(event, format, kind);
  map["token_ids"] = event.tokens;
  if (is_sglang(format)) {
    if (!event.salt.empty()) map["cache_salt"] = event.salt;
    return map;
  }
  map["lora_name"] = nullptr;
  if (nlohmann::json keys = extra_keys(event); !keys.is_null()) map["extra_keys"] = std::move(keys);
  return map;
}

nlohmann::json stored_array(const CacheEvent& event, KvEventFormat format, KvHashKind kind,
                            std::int64_t block_size) {
  nlohmann::json array = nlohmann::json::array({"BlockStored"});
  array.push_back(hash_list(event, format, kind));
  array.push_back(parent_value(event, format, kind));
  array.push_back(event.tokens);
  array.push_back(block_size);
  array.push_back(nullptr);  // lora_id
  if (format >= KvEventFormat::kVllm2025September) array.push_back("GPU");
  if (is_sglang(format)) {
    if (!event.salt.empty()) array.push_back(nlohmann::json{{"cache_salt", event.salt}});
    return array;
  }
  if (format >= KvEventFormat::kVllm2025December) array.push_back(nullptr);  // lora_name
  if (format >= KvEventFormat::kVllm2026February) array.push_back(extra_keys(event));
  if (format >= KvEventFormat::kVllm2026April) array.push_back(nullptr);  // group_idx
  if (format >= KvEventFormat::kVllm2026May) {
    array.push_back(nullptr);  // kv_cache_spec_kind
    array.push_back(nullptr);  // kv_cache_spec_sliding_window
  }
  return array;
}

nlohmann::json removed_array(const CacheEvent& event, KvEventFormat format, KvHashKind kind) {
  nlohmann::json array = nlohmann::json::array({"BlockRemoved"});
  array.push_back(hash_list(event, format, kind));
  if (format >= KvEventFormat::kVllm2025September) array.push_back("GPU");
  if (!is_sglang(format) && format >= KvEventFormat::kVllm2026April) array.push_back(nullptr);  // group_idx
  return array;
}

bool writes_maps(KvEventFormat format) {
  return format == KvEventFormat::kVllmMap || format == KvEventFormat::kSglangMap;
}

}  // namespace

bool is_sglang(KvEventFormat format) {
  return format == KvEventFormat::kSglangArray || format == KvEventFormat::kSglangMap;
}

nlohmann::json kv_event_value(const CacheEvent& event, KvEventFormat format, KvHashKind hashes,
                              std::int64_t block_size) {
  const bool map = writes_maps(format);
  switch (event.kind) {
    case CacheEvent::Kind::kStored:
      return map ? stored_map(event, format, hashes, block_size)
                 : stored_array(event, format, hashes, block_size);
    case CacheEvent::Kind::kRemoved:
      if (!map) return removed_array(event, format, hashes);
      return nlohmann::json{
          {"type", "BlockRemoved"}, {"block_hashes", hash_list(event, format, hashes)}, {"medium", "GPU"}};
    case CacheEvent::Kind::kCleared:
      break;
  }
  if (map) return nlohmann::json{{"type", "AllBlocksCleared"}};
  return nlohmann::json::array({"AllBlocksCleared"});
}

std::vector<std::uint8_t> kv_batch_bytes(nlohmann::json events, std::int64_t rank, double timestamp) {
  nlohmann::json batch = nlohmann::json::array();
  batch.push_back(timestamp);
  batch.push_back(std::move(events));
  batch.push_back(rank);
  return nlohmann::json::to_msgpack(batch);
}

}  // namespace handoff::mock
