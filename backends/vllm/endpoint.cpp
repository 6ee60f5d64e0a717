#include "backends/vllm/endpoint.hpp"

namespace handoff::vllm {
namespace {

constexpr std::array<Endpoint, 5> kEndpoints{{
    // Without `max_tokens` the engine would generate up to its context length.
    {.path = kChatPath,
     .limits = {{{"max_tokens", true}, {"max_completion_tokens", false}}},
     .has_min_tokens = true,
     .has_cache_salt = true},
    {.path = kCompletionsPath,
     .limits = {{{"max_tokens", true}, {"max_completion_tokens", false}}},
     .has_min_tokens = true,
     .has_cache_salt = true},
    {.path = kResponsesPath,
     .limits = {{{"max_output_tokens", true}}},
     .has_cache_salt = true,
     .has_store = true},
    // `max_tokens` is required here: adding it would hide the client's mistake until decode, too late to give
    // the handoff back. The schema has no `cache_salt`.
    {.path = kMessagesPath, .limits = {{{"max_tokens", false}}}},
    {.path = kGeneratePath,
     .limits = {{{"max_tokens", true}}},
     .has_sampling_params = true,
     .has_min_tokens = true,
     .has_cache_salt = true},
}};

}  // namespace

const Endpoint* find_endpoint(std::string_view path) {
  for (const Endpoint& endpoint : kEndpoints) {
    if (endpoint.path == path) return &endpoint;
  }
  return nullptr;
}

}  // namespace handoff::vllm
