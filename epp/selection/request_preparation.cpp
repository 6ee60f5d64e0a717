#include "epp/selection/request_preparation.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "epp/selection/mix_hash.hpp"
#include "epp/selection/tracking_hash.hpp"

namespace handoff::epp {
namespace {

using MaybeError = std::optional<SelectionError>;

MaybeError bad_request(std::string text) {
  return SelectionError{SelectionErrorCode::kBadRequest, std::move(text)};
}

bool non_negative(const std::optional<double>& value) {
  return !value || (std::isfinite(*value) && *value >= 0.0);
}

MaybeError check_isl(std::uint64_t isl_tokens, const SelectionLimits& limits) {
  if (isl_tokens == 0) return bad_request("isl_tokens must be greater than 0");
  if (isl_tokens > limits.max_prompt_tokens) return bad_request("the prompt has too many tokens");
  return std::nullopt;
}

MaybeError check_prompt(const Prompt& prompt, const SelectionLimits& limits) {
  if (const auto* tokens = std::get_if<TokenPrompt>(&prompt)) {
    if (tokens->lora_name.size() > limits.max_text_bytes ||
        tokens->cache_salt.size() > limits.max_text_bytes) {
      return bad_request("lora_name or cache_salt is too long");
    }
    return check_isl(tokens->token_ids.size(), limits);
  }
  if (const auto* hashed = std::get_if<HashedPrompt>(&prompt)) {
    if (hashed->sequence_hashes.size() > limits.max_prompt_blocks) return bad_request("too many hashes");
    if (hashed->lora_name.size() > limits.max_text_bytes) return bad_request("lora_name is too long");
    return check_isl(hashed->isl_tokens, limits);
  }
  const auto& sized = std::get<SizedPrompt>(prompt);
  if (sized.lora_name.size() > limits.max_text_bytes) return bad_request("lora_name is too long");
  return check_isl(sized.isl_tokens, limits);
}

MaybeError check_overrides(const CostOverride& overrides) {
  if (!non_negative(overrides.overlap_score_credit)) {
    return bad_request("overlap_score_credit must be finite and >= 0");
  }
  if (!non_negative(overrides.prefill_load_scale)) {
    return bad_request("prefill_load_scale must be finite and >= 0");
  }
  if (!non_negative(overrides.router_temperature)) {
    return bad_request("router_temperature must be finite and >= 0");
  }
  const auto& shared = overrides.shared_cache_multiplier;
  if (shared && !(*shared >= 0.0 && *shared <= 1.0)) {
    return bad_request("shared_cache_multiplier must be in [0, 1]");
  }
  return std::nullopt;
}

MaybeError check_constraints(const SelectRequest& request, const SelectionLimits& limits) {
  const RoutingConstraints& constraints = request.constraints;
  if (constraints.required_taints.size() > limits.max_constraints ||
      constraints.preferred_taints.size() > limits.max_constraints ||
      request.shared_cache_hits.size() > limits.max_constraints) {
    return bad_request("too many routing constraints");
  }
  for (const auto& [taint, weight] : constraints.preferred_taints) {
    if (!std::isfinite(weight)) return bad_request("preferred taint weights must be finite");
  }
  if (request.allowed_workers && request.allowed_workers->size() > limits.max_workers) {
    return bad_request("too many allowed workers");
  }
  std::uint32_t previous = 0;
  for (const auto& [first, last] : request.shared_cache_hits) {
    if (first < previous || last < first) return bad_request("shared cache ranges must ascend");
    previous = last;
  }
  return std::nullopt;
}

MaybeError check_names(const std::string& model, const std::string& group, const std::string& id,
                       const SelectionLimits& limits) {
  if (model.size() > limits.max_text_bytes || group.size() > limits.max_text_bytes) {
    return bad_request("model_name or routing_group is too long");
  }
  if (id.size() > limits.max_id_bytes) return bad_request("selection_id is too long");
  return std::nullopt;
}

// What the prompt means for a partition: hashes where something needs them, and how many blocks it holds.
MaybeError resolve_prompt(PreparedRequest& out, Prompt& prompt, bool reuse, const PartitionKey& partition,
                          bool is_eagle, const SelectorConfig& config) {
  const std::uint32_t block_size = out.cost.block_size;
  const bool tracks = config.options.track_blocks;
  std::uint64_t blocks = 0;
  if (auto* tokens = std::get_if<TokenPrompt>(&prompt)) {
    const bool eagle = tokens->is_eagle.value_or(is_eagle);
    out.isl_tokens = tokens->token_ids.size();
    blocks = complete_blocks(tokens->token_ids.size(), block_size, eagle);
    const HashOptions options{tokens->lora_name, tokens->cache_salt, tokens->media, eagle};
    const bool is_keyed = tracks && reuse && config.tracking_key;
    if (config.options.use_overlap || (tracks && reuse && !is_keyed)) {
      out.sequence_hashes = hash_request(tokens->token_ids, block_size, options);
    }
    if (is_keyed) {
      out.keyed_hashes =
          keyed_tracking_hashes(*config.tracking_key, partition, tokens->token_ids, block_size, options);
    }
    out.lora_name = std::move(tokens->lora_name);
    tokens->token_ids = {};
    tokens->media = {};
  } else if (auto* hashed = std::get_if<HashedPrompt>(&prompt)) {
    out.isl_tokens = hashed->isl_tokens;
    blocks = hashed->sequence_hashes.size();
    if (blocks > hashed->isl_tokens / block_size) {
      return bad_request("more sequence_hashes than isl_tokens has complete blocks");
    }
    out.sequence_hashes = std::move(hashed->sequence_hashes);
    out.lora_name = std::move(hashed->lora_name);
  } else {
    auto& sized = std::get<SizedPrompt>(prompt);
    out.isl_tokens = sized.isl_tokens;
    out.lora_name = std::move(sized.lora_name);
    blocks = out.isl_tokens / block_size;
  }
  out.tracked_blocks = tracks ? blocks : 0;
  out.shares_blocks = tracks && reuse && !out.booking_hashes().empty();
  if (const std::size_t stride = config.active_sequence_stride; out.shares_blocks && stride > 1) {
    auto& kept = out.strided_hashes.emplace();
    const auto& all = out.booking_hashes();
    for (std::size_t i = stride - 1; i < all.size(); i += stride) kept.push_back(all[i]);
  }
  return std::nullopt;
}

}  // namespace

std::optional<SelectionError> validate(const SelectRequest& request, const SelectionLimits& limits) {
  if (auto error = check_names(request.model_name, request.routing_group, request.selection_id, limits)) {
    return error;
  }
  if (request.policy_class.size() > limits.max_text_bytes) return bad_request("policy_class is too long");
  if (request.tie_seed.size() > limits.max_text_bytes) return bad_request("tie_seed is too long");
  if (request.session) {
    const auto& session = request.session->session_id;
    if (session.empty() || session.size() > limits.max_id_bytes) {
      return bad_request("session_id must have 1 to " + std::to_string(limits.max_id_bytes) + " bytes");
    }
  }
  if (!std::isfinite(request.priority_jump)) return bad_request("priority_jump must be finite");
  if (auto error = check_overrides(request.overrides)) return error;
  if (auto error = check_constraints(request, limits)) return error;
  return check_prompt(request.prompt, limits);
}

std::optional<SelectionError> validate(const ReservationRequest& request, const SelectionLimits& limits) {
  if (auto error = check_names(request.model_name, request.routing_group, request.selection_id, limits)) {
    return error;
  }
  if (request.selection_id.empty()) return bad_request("selection_id is required");
  if (!request.worker) return std::nullopt;  // only the id is looked at
  return check_prompt(request.prompt, limits);
}

Result<PreparedRequest> prepare(SelectRequest&& request, bool book, const PartitionKey& partition,
                                std::uint32_t block_size, bool is_eagle, const SelectorConfig& config) {
  PreparedRequest out;
  out.request = std::move(request);
  out.book = book;
  const CostOverride& overrides = out.request.overrides;
  const bool reuse = overrides.assume_kv_reuse.value_or(config.options.assume_kv_reuse);
  out.cost.block_size = block_size;
  if (auto error = resolve_prompt(out, out.request.prompt, reuse, partition, is_eagle, config)) {
    return std::move(*error);
  }

  CostConfig& weights = out.cost.weights;
  weights = config.cost;
  weights.overlap_score_credit = overrides.overlap_score_credit.value_or(weights.overlap_score_credit);
  weights.prefill_load_scale = overrides.prefill_load_scale.value_or(weights.prefill_load_scale);
  weights.shared_cache_multiplier =
      overrides.shared_cache_multiplier.value_or(weights.shared_cache_multiplier);
  out.temperature = overrides.router_temperature.value_or(weights.temperature);
  out.cost.isl_tokens = out.isl_tokens;
  out.cost.track_prefill = overrides.track_prefill_tokens.value_or(config.options.track_prefill_tokens);
  out.cost.decode_role = config.role == SelectorRole::kDecode;

  const std::string_view seed =
      out.request.tie_seed.empty() ? std::string_view(out.request.selection_id) : out.request.tie_seed;
  out.request_hash = hash_text(seed);
  out.request.tie_seed = {};
  if (auto& allowed = out.request.allowed_workers) std::sort(allowed->begin(), allowed->end());
  return out;
}

}  // namespace handoff::epp
