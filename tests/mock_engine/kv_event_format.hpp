// The bytes of KV events as each generation of the engines writes them. No sockets.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "prefix_cache.hpp"

namespace handoff::mock {

// By the month in which the shape came; the arrays of vLLM only ever grew.
enum class KvEventFormat {
  kVllm2025April,      // arrays of 6
  kVllm2025September,  // 7: medium
  kVllm2025December,   // 8: lora_name
  kVllm2026February,   // 9: extra_keys
  kVllm2026April,      // 10: group_idx
  kVllm2026May,        // 12: kind and window
  kVllmMap,            // maps, since June 2026
  kSglangArray,
  kSglangMap,  // since September 2026
};

enum class KvHashKind { kInt, kBytes };  // SGLang's are always signed integers

bool is_sglang(KvEventFormat format);

// One event as the value that goes into the batch.
nlohmann::json kv_event_value(const CacheEvent& event, KvEventFormat format, KvHashKind hashes,
                              std::int64_t block_size);
// [timestamp, events, rank] as msgpack.
std::vector<std::uint8_t> kv_batch_bytes(nlohmann::json events, std::int64_t rank, double timestamp);

}  // namespace handoff::mock
