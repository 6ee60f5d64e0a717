#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {

/// Headers of a generation request. The engine can be told to take a room, a bootstrap host or an id from
/// headers (SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES); those of a client are removed, as the members of the
/// body are refused.
class LegHeaders {
 public:
  /// `rank`: the prefill rank that was chosen.
  static LegHeaders for_prefill(std::optional<std::string_view> rank);
  static LegHeaders for_decode(const handoff_request& request);
  std::span<const handoff_header> fields() const { return std::span(fields_).first(count_); }

 private:
  LegHeaders();
  void add(std::string_view name, std::string_view value) { fields_.at(count_++) = sdk::header(name, value); }

  std::array<handoff_header, 5> fields_{};
  std::size_t count_ = 0;
};

/// Headers of a question or an abort: who asks, and nothing else of the client's.
class CallHeaders {
 public:
  CallHeaders(const handoff_request& request, bool has_body);
  std::span<const handoff_header> fields() const { return std::span(fields_).first(count_); }

 private:
  std::array<handoff_header, 2> fields_{};
  std::size_t count_ = 0;
};

}  // namespace handoff::sglang
