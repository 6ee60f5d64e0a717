// Everything that the sidecar itself tells a client when a request fails: a closed set, and the one place
// that maps it to HTTP statuses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace handoff::sidecar {

/// The names are the `code` of the error body. In the order of the table in sidecar_error.cpp.
enum class SidecarError : std::uint8_t {
  // The client's request as HTTP
  bad_request,
  request_head_too_large,
  expectation_failed,
  connect_not_supported,
  upgrade_not_supported,
  http_version_not_supported,
  // The client's request as an inference request
  invalid_pd_request,
  pd_request_timeout,
  pd_request_too_large,
  unsupported_content_encoding,
  // Routing
  invalid_epp_metadata,
  prefill_endpoint_not_allowed,
  pd_adapter_unavailable,
  // The prefill leg
  prefill_upstream_unavailable,
  prefill_upstream_timeout,
  prefill_deadline_exceeded,
  prefill_upstream_error,
  prefill_response_too_large,
  invalid_prefill_handoff,
  missing_prefill_handoff,
  // The decode leg, and auxiliary calls such as GET /server_info
  decode_upstream_error,
  decode_upstream_timeout,
  auxiliary_upstream_error,
  auxiliary_upstream_timeout,
  // The sidecar
  request_cancelled,
  sidecar_overloaded,
  backend_failed,
};

/// How loud a failure is logged: `info` for what a client can cause at will, `warning` for a trouble of peers
/// or engines, `error` for what an operator has to mend.
enum class ErrorSeverity : std::uint8_t { info, warning, error };

/// One row of the table. All text is static.
struct SidecarErrorRow {
  SidecarError error;
  std::string_view code;
  /// The status, unless the failure brings its own, as prefill_upstream_error does.
  unsigned status;
  /// What the client reads when the place of failure has nothing better to say. Never holds a client's or
  /// engine's bytes.
  std::string_view message;
  ErrorSeverity severity;
  /// Whether a Retry-After header may go with it: the same request may succeed later.
  bool may_carry_retry_after;
  /// For the docs.
  std::string_view when;
};

const SidecarErrorRow& row_of(SidecarError error);
std::span<const SidecarErrorRow> all_sidecar_errors();

/// `error.type` of a status: permission_error for 403, invalid_request_error for any other 4xx, else
/// server_error.
std::string_view error_type(unsigned status);

/// The OpenAI-shaped body. Valid JSON whatever the texts hold: bytes that are no UTF-8 become U+FFFD.
std::string error_body(std::string_view code, std::string_view type, std::string_view message,
                       std::optional<std::string_view> param = std::nullopt);

/// The body of a failure with its default status and message.
std::string error_body(SidecarError error);

/// The body of a failure with its own message, and with the status that it is sent with.
std::string error_body(SidecarError error, unsigned status, std::string_view message,
                       std::optional<std::string_view> param = std::nullopt);

/// The table for the docs.
std::string error_table_markdown();

}  // namespace handoff::sidecar
