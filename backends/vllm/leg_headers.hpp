#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

// Header fields that differ between the client's request and the legs: data-parallel ranks.
namespace handoff::vllm {

inline constexpr std::string_view kEngineRankHeader = "x-data-parallel-rank";
inline constexpr std::string_view kPrefillRankHeader = "x-dynamo-prefill-dp-rank";
inline constexpr std::string_view kDecodeRankHeader = "x-dynamo-dp-rank";

/// The rank that the endpoint picker chose; anything but a short number is as good as none.
inline std::optional<std::string_view> chosen_rank(const handoff_request& request, std::string_view name) {
  const auto value = sdk::find_header(request.headers, request.header_count, name);
  if (!value || value->empty() || value->size() > 5) return std::nullopt;
  if (value->find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return value;
}

/// Headers of a request to the local engine. Without a chosen rank the client's own header stays.
class DecodeHeaders {
 public:
  explicit DecodeHeaders(const handoff_request& request) {
    if (const auto rank = chosen_rank(request, kDecodeRankHeader)) {
      fields_[0] = sdk::header(kEngineRankHeader, *rank);
      count_ = 1;
    }
  }
  std::span<const handoff_header> fields() const { return std::span(fields_).first(count_); }

 private:
  std::array<handoff_header, 1> fields_{};
  std::size_t count_ = 0;
};

/// Whether a leg was lost on a kept connection before the engine said anything: it may be tried once more.
inline bool lost_in_transit(const handoff_event& event) {
  return event.cause == HANDOFF_CAUSE_RESET && (event.flags & HANDOFF_REUSED) != 0 &&
         (event.flags & HANDOFF_REPLY_STARTED) == 0;
}

}  // namespace handoff::vllm
