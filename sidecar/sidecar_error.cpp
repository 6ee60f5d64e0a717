#include "sidecar/sidecar_error.hpp"

#include <cstddef>
#include <nlohmann/json.hpp>

namespace handoff::sidecar {
namespace {

using enum SidecarError;
using enum ErrorSeverity;

constexpr SidecarErrorRow kRows[] = {
    {bad_request, "bad_request", 400, "The request is not valid HTTP", info, false,
     "malformed HTTP, or a head that two servers could read differently (request smuggling)"},
    {request_head_too_large, "request_head_too_large", 431, "The request head is too large", info, false,
     "request line and headers above `DYN_SIDECAR_MAX_HEADER_BYTES`, or more than 256 header lines"},
    {expectation_failed, "expectation_failed", 417, "The expectation is not supported", info, false,
     "`Expect` with anything but `100-continue`"},
    {connect_not_supported, "connect_not_supported", 501, "CONNECT is not supported", info, false,
     "`CONNECT`"},
    {upgrade_not_supported, "upgrade_not_supported", 501, "Protocol upgrades are not supported", info, false,
     "a request that can only go on in another protocol"},
    {http_version_not_supported, "http_version_not_supported", 505, "The HTTP version is not supported", info,
     false, "neither HTTP/1.1 nor HTTP/1.0"},

    {invalid_pd_request, "invalid_pd_request", 400, "The request body is not valid for this endpoint", info,
     false,
     "no JSON object, one in UTF-16 or UTF-32 or with a byte order mark, one of more than 4,096 members, or "
     "a field that only the sidecar may set"},
    {pd_request_timeout, "pd_request_timeout", 408, "The request body did not arrive in time", info, false,
     "the client sends its body too slowly"},
    {pd_request_too_large, "pd_request_too_large", 413, "The request body is too large", info, false,
     "a body above the limit on a generation path"},
    {unsupported_content_encoding, "unsupported_content_encoding", 415,
     "The request body must not be compressed or otherwise encoded", info, false,
     "a `Content-Encoding` other than `identity` on a generation path"},

    {invalid_epp_metadata, "invalid_epp_metadata", 502, "Invalid EPP routing metadata", error, false,
     "`x-prefiller-host-port` is not exactly one `host:port`"},
    {prefill_endpoint_not_allowed, "prefill_endpoint_not_allowed", 403, "The prefill endpoint is not allowed",
     error, false, "the endpoint is not on the allowlist"},
    {pd_adapter_unavailable, "pd_adapter_unavailable", 501, "No prefill/decode backend is configured", error,
     false, "a prefill endpoint was given and no backend is loaded"},

    {prefill_upstream_unavailable, "prefill_upstream_unavailable", 502,
     "The prefill engine could not be reached", warning, true,
     "connecting to prefill failed, or the connection broke"},
    {prefill_upstream_timeout, "prefill_upstream_timeout", 504, "The prefill engine did not answer in time",
     warning, true, "prefill was silent for longer than the read timeout"},
    {prefill_deadline_exceeded, "prefill_deadline_exceeded", 504, "The prefill engine did not finish in time",
     warning, true, "the prefill leg as a whole took too long"},
    {prefill_upstream_error, "prefill_upstream_error", 502, "The prefill engine failed", warning, true,
     "prefill answered with a failure; its 500, 502, 503 and 504 keep their status"},
    {prefill_response_too_large, "prefill_response_too_large", 502, "The prefill engine's reply is too large",
     error, false, "the prefill reply is above the limit"},
    {invalid_prefill_handoff, "invalid_prefill_handoff", 502, "The prefill engine's handoff is not valid",
     error, false, "the prefill reply can't be read, or its handoff is incomplete"},
    {missing_prefill_handoff, "missing_prefill_handoff", 502, "The prefill engine sent no handoff", error,
     false, "the prefill reply has no handoff, and decode-only is not wanted"},

    {decode_upstream_error, "decode_upstream_error", 502, "The decode engine could not be reached or failed",
     warning, true, "the local engine can't be reached, or its answer broke before it began"},
    {decode_upstream_timeout, "decode_upstream_timeout", 504, "The decode engine did not answer in time",
     warning, true, "the local engine was silent for longer than the read timeout"},
    {auxiliary_upstream_error, "auxiliary_upstream_error", 502, "A call that prepares the request failed",
     warning, true, "an auxiliary call, such as `GET /server_info`, failed"},
    {auxiliary_upstream_timeout, "auxiliary_upstream_timeout", 504,
     "A call that prepares the request was not answered in time", warning, true,
     "an auxiliary call timed out"},

    {request_cancelled, "request_cancelled", 502, "The request was cancelled", info, true,
     "cut off at the end of a shutdown's drain"},
    {sidecar_overloaded, "sidecar_overloaded", 503, "The sidecar is overloaded", warning, true,
     "a limit on connections or memory is reached"},
    {backend_failed, "backend_failed", 500, "The prefill/decode backend failed", error, false,
     "a fault of the backend plugin"},
};

constexpr bool rows_are_in_the_order_of_the_enum() {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<std::size_t>(kRows[i].error) != i) return false;
  }
  return true;
}
static_assert(rows_are_in_the_order_of_the_enum());
static_assert(std::size(kRows) == static_cast<std::size_t>(backend_failed) + 1, "one row for each error");

}  // namespace

const SidecarErrorRow& row_of(SidecarError error) {
  return kRows[static_cast<std::size_t>(error)];
}

std::span<const SidecarErrorRow> all_sidecar_errors() {
  return kRows;
}

std::string_view error_type(unsigned status) {
  if (status == 403) return "permission_error";
  return status >= 400 && status < 500 ? "invalid_request_error" : "server_error";
}

std::string error_body(std::string_view code, std::string_view type, std::string_view message,
                       std::optional<std::string_view> param) {
  using Json = nlohmann::ordered_json;
  const Json body = {{"error",
                      {{"message", message},
                       {"type", type},
                       {"param", param ? Json(*param) : Json(nullptr)},
                       {"code", code}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_body(SidecarError error) {
  const SidecarErrorRow& row = row_of(error);
  return error_body(error, row.status, row.message);
}

std::string error_body(SidecarError error, unsigned status, std::string_view message,
                       std::optional<std::string_view> param) {
  return error_body(row_of(error).code, error_type(status), message, param);
}

std::string error_table_markdown() {
  std::string table = "| Status | `code` | `type` | When |\n|---|---|---|---|\n";
  for (const SidecarErrorRow& row : kRows) {
    table += "| " + std::to_string(row.status) + " | `";
    table.append(row.code).append("` | `").append(error_type(row.status)).append("` | ").append(row.when);
    table += " |\n";
  }
  return table;
}

}  // namespace handoff::sidecar
