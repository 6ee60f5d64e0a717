#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

// Header fields that differ between the client's request and the legs: data-parallel ranks, and the request
// id where engines pair the legs by it.
namespace handoff::vllm {

inline constexpr std::string_view kEngineRankHeader = "x-data-parallel-rank";
inline constexpr std::string_view kRequestIdHeader = "x-request-id";
inline constexpr std::string_view kPrefillRankHeader = "x-dynamo-prefill-dp-rank";
inline constexpr std::string_view kDecodeRankHeader = "x-dynamo-dp-rank";

/// The rank that the endpoint picker chose; anything but a short number is as good as none.
inline std::optional<std::string_view> chosen_rank(const handoff_request& request, std::string_view name) {
  const auto value = sdk::find_header(request.headers, request.header_count, name);
  if (!value || value->empty() || value->size() > 5) return std::nullopt;
  if (value->find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return value;
}

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

/// Key of what is remembered of a prefill endpoint.
inline std::string endpoint_key(const handoff_request& request) {
  return std::string(sdk::view(request.prefill_host)) + " " + std::to_string(request.prefill_port);
}
/// The same, of the chosen rank alone.
inline std::string rank_key(const handoff_request& request) {
  return endpoint_key(request) + " " + std::string(chosen_rank(request, kPrefillRankHeader).value_or(""));
}

/// Whether a leg was lost on a kept connection before the engine said anything: it may be tried once more.
inline bool lost_in_transit(const handoff_event& event) {
  return event.cause == HANDOFF_CAUSE_RESET && (event.flags & HANDOFF_REUSED) != 0 &&
         (event.flags & HANDOFF_REPLY_STARTED) == 0;
}

}  // namespace handoff::vllm
