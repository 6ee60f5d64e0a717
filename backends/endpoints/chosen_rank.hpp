#pragma once

#include <optional>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::endpoints {

/// Set by the endpoint picker; removed from every leg by the sidecar.
inline constexpr std::string_view kPrefillRankHeader = "x-dynamo-prefill-dp-rank";
inline constexpr std::string_view kDecodeRankHeader = "x-dynamo-dp-rank";
/// What vLLM and SGLang engines read.
inline constexpr std::string_view kEngineRankHeader = "x-data-parallel-rank";

/// The rank that the endpoint picker chose; anything but a short number is as good as none. A view of the
/// request's header.
inline std::optional<std::string_view> chosen_rank(const handoff_request& request, std::string_view name) {
  const auto value = sdk::find_header(request.headers, request.header_count, name);
  if (!value || value->empty() || value->size() > 5) return std::nullopt;
  if (value->find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return value;
}

}  // namespace handoff::endpoints
