#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace handoff::epp {

enum class OnNoPrefill : std::uint8_t { kError, kDecodeOnly };
enum class TokenizerFallback : std::uint8_t { kLoadOnly, kError };
// When a prompt stays with decode: where few of its tokens are uncached there, while prefill is busy, either.
enum class ConditionalPolicy : std::uint8_t { kIslBounding, kPrefillLoad, kIslOrLoad };
enum class NonstreamRelease : std::uint8_t { kEstimate, kResponse };

// How requests are planned. Set at start, never changed.
struct PlanningConfig {
  // The model
  std::string model_name = "default";
  std::vector<std::string> model_aliases;
  bool strict_model = false;

  // Workers
  std::uint32_t block_size = 0;
  bool use_kv_events = true;
  std::uint16_t kv_event_port = 5557;
  std::optional<std::uint16_t> kv_replay_port;
  std::optional<std::uint64_t> total_kv_blocks;
  std::optional<std::uint64_t> max_num_batched_tokens;
  std::optional<std::uint64_t> prefill_max_num_batched_tokens;
  std::optional<std::uint64_t> decode_max_num_batched_tokens;
  bool is_eagle = false;

  // Plans
  OnNoPrefill on_no_prefill = OnNoPrefill::kError;
  bool conditional_disaggregation = false;
  ConditionalPolicy conditional_policy = ConditionalPolicy::kIslBounding;
  std::uint64_t conditional_isl_threshold = 0;            // fewer uncached tokens than this are few
  std::optional<double> conditional_isl_ratio_threshold;  // a smaller part of the prompt than this is little
  // Pending tokens beyond which a prefill worker is busy.
  std::optional<std::uint64_t> conditional_prefill_busy_threshold;
  TokenizerFallback tokenizer_fallback = TokenizerFallback::kLoadOnly;
  bool inject_cache_salt = false;
  NonstreamRelease nonstream_release = NonstreamRelease::kEstimate;
  bool ignores_nvext = false;  // hints in a body's `nvext` do not count

  // Admission
  std::uint64_t max_inflight = 1024;
};

}  // namespace handoff::epp
