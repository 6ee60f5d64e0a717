#include "kv_event_format.hpp"

#include <utility>

namespace handoff::mock {
namespace {

using Json = nlohmann::json;

std::uint64_t big_endian(const BlockDigest& digest, std::size_t from) {
  std::uint64_t value = 0;
  for (std::size_t i = from; i < from + 8; ++i) value = value << 8 | digest[i];
  return value;
}

// vLLM: the low 64 bits or all 32 bytes. SGLang: the first eight bytes, signed.
Json hash_value(const BlockDigest& digest, KvEventFormat format, KvHashKind kind) {
  if (is_sglang(format)) return static_cast<std::int64_t>(big_endian(digest, 0));
  if (kind == KvHashKind::kInt) return big_endian(digest, 24);
  return Json::binary(std::vector<std::uint8_t>(digest.begin(), digest.end()));
}

Json hash_list(const CacheEvent& event, KvEventFormat format, KvHashKind kind) {
  Json list = Json::array();
  for (const BlockDigest& digest : is_sglang(format) ? event.plain : event.blocks)
    list.push_back(hash_value(digest, format, kind));
  return list;
}

Json parent_value(const CacheEvent& event, KvEventFormat format, KvHashKind kind) {
  const auto& parent = is_sglang(format) ? event.plain_parent : event.parent;
  return parent ? hash_value(*parent, format, kind) : Json(nullptr);
}

// vLLM's list per block; the salt is an extra key of a prompt's first block. Null: no block has any.
Json extra_keys(const CacheEvent& event) {
  if (event.salt.empty() || event.parent) return nullptr;
  Json list = Json::array();
  Json first = Json::array();
  first.push_back(event.salt);
  list.push_back(std::move(first));
  for (std::size_t i = 1; i < event.blocks.size(); ++i) list.push_back(nullptr);
  return list;
}

Json stored_map(const CacheEvent& event, KvEventFormat format, KvHashKind kind, std::int64_t block_size) {
  Json map{{"type", "BlockStored"}, {"block_size", block_size}, {"lora_id", nullptr}, {"medium", "GPU"}};
  map["block_hashes"] = hash_list(event, format, kind);
  map["parent_block_hash"] = parent_value(event, format, kind);
  map["token_ids"] = event.tokens;
  if (is_sglang(format)) {
    if (!event.salt.empty()) map["cache_salt"] = event.salt;
    return map;
  }
  map["lora_name"] = nullptr;
  if (Json keys = extra_keys(event); !keys.is_null()) map["extra_keys"] = std::move(keys);
  return map;
}

Json stored_array(const CacheEvent& event, KvEventFormat format, KvHashKind kind, std::int64_t block_size) {
  Json array = Json::array({"BlockStored"});
  array.push_back(hash_list(event, format, kind));
  array.push_back(parent_value(event, format, kind));
  array.push_back(event.tokens);
  array.push_back(block_size);
  array.push_back(nullptr);  // lora_id
  if (format >= KvEventFormat::kVllm2025September) array.push_back("GPU");
  if (is_sglang(format)) {
    if (!event.salt.empty()) array.push_back(Json{{"cache_salt", event.salt}});
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

Json removed_array(const CacheEvent& event, KvEventFormat format, KvHashKind kind) {
  Json array = Json::array({"BlockRemoved"});
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

Json kv_event_value(const CacheEvent& event, KvEventFormat format, KvHashKind hashes,
                    std::int64_t block_size) {
  const bool map = writes_maps(format);
  switch (event.kind) {
    case CacheEvent::Kind::kStored:
      return map ? stored_map(event, format, hashes, block_size)
                 : stored_array(event, format, hashes, block_size);
    case CacheEvent::Kind::kRemoved:
      if (!map) return removed_array(event, format, hashes);
      return Json{
          {"type", "BlockRemoved"}, {"block_hashes", hash_list(event, format, hashes)}, {"medium", "GPU"}};
    case CacheEvent::Kind::kCleared:
      break;
  }
  if (map) return Json{{"type", "AllBlocksCleared"}};
  return Json::array({"AllBlocksCleared"});
}

std::vector<std::uint8_t> kv_batch_bytes(Json events, std::int64_t rank, double timestamp) {
  Json batch = Json::array();
  batch.push_back(timestamp);
  batch.push_back(std::move(events));
  batch.push_back(rank);
  return Json::to_msgpack(batch);
}

}  // namespace handoff::mock
