#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "backends/endpoints/chosen_rank.hpp"
#include "backends/endpoints/endpoint_memory.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

// Header fields that differ between the client's request and the legs: data-parallel ranks, and the request
// id where engines pair the legs by it.
namespace handoff::vllm {

using endpoints::chosen_rank;
using endpoints::kDecodeRankHeader;
using endpoints::kEngineRankHeader;
using endpoints::kPrefillRankHeader;
inline constexpr std::string_view kRequestIdHeader = "x-request-id";

/// Headers of a request to the local engine. Without a chosen rank the client's own header stays, and without
/// a `request_id` (which outlives this) the client's.
class DecodeHeaders {
 public:
  explicit DecodeHeaders(const handoff_request& request, std::string_view request_id = {}) {
    if (const auto rank = chosen_rank(request, kDecodeRankHeader))
      fields_[count_++] = sdk::header(kEngineRankHeader, *rank);
    if (!request_id.empty()) fields_[count_++] = sdk::header(kRequestIdHeader, request_id);
  }
  std::span<const handoff_header> fields() const { return std::span(fields_).first(count_); }

 private:
  std::array<handoff_header, 2> fields_{};
  std::size_t count_ = 0;
};

/// Key of what is remembered of the chosen rank of a prefill endpoint.
inline std::string rank_key(const handoff_request& request) {
  return endpoints::endpoint_key(request) + " " +
         std::string(chosen_rank(request, kPrefillRankHeader).value_or(""));
}

}  // namespace handoff::vllm
