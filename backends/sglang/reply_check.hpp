#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backends/sglang/request_shape.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

// Failures that come with a status of 200.
namespace handoff::sglang {

/// What is wrong with a prefill reply of status 200, as a phrase that names the field; empty: it is good.
/// Prefill has handed everything over exactly if each item ended like an ordinary answer of one token.
std::string_view find_prefill_defect(const sdk::Host& host, std::string_view reply,
                                     const RequestShape& shape);

/// What a reply, or the data of one event, says of the engine.
struct ReportedFailure {
  /// The code it gives, if that is an HTTP status that a client may see; else 502.
  std::uint32_t status = 502;
  bool retryable = false;  ///< it says that another try may go well
  /// Of a 4xx: the engine's words, in the shape that it gives them without a stream. Empty if it has none.
  std::string answer = {};
};
/// An `error`, or an end by an abort that has a status: the scheduler's way of failing a stream whose 200 is
/// out. An abort without one is somebody's wish, and an answer like any other. Of a list, the first item that
/// failed.
std::optional<ReportedFailure> find_reported_failure(std::string_view reply);

}  // namespace handoff::sglang
