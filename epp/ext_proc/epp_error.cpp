#include "epp/ext_proc/epp_error.hpp"

#include <array>

#include "shared/json/string_text.hpp"

namespace handoff::epp {
namespace {

constexpr std::array kRows = {
    EppErrorRow{EppError::invalid_request, "invalid_request", 400, "The request cannot be routed as it is.",
                "The tokenizer refused the request, with `DYN_EPP_TOKENIZER_FALLBACK=error`; the body has "
                "`nvext.prefill_worker_id`; or the prompt has more tokens than can be booked. "
                "Routing headers and hints that are out of bounds are ignored."},
    EppErrorRow{EppError::model_not_found, "model_not_found", 404, "The model does not exist.",
                "`DYN_EPP_STRICT_MODEL` is on and the request names another model."},
    EppErrorRow{EppError::request_timeout, "request_timeout", 408, "The request body did not arrive in time.",
                "The request body stopped coming in."},
    EppErrorRow{EppError::request_conflict, "request_conflict", 409, "The request contradicts a booking.",
                "A reservation of that name is in use in another way."},
    EppErrorRow{EppError::request_too_large, "request_too_large", 413, "The request body is too large.",
                "The body is larger than `DYN_EPP_MAX_REQUEST_BODY_BYTES`."},
    EppErrorRow{EppError::too_many_metadata_headers, "too_many_metadata_headers", 431,
                "The request has more than 64 x-dynamo-meta headers.",
                "More than 64 `x-dynamo-meta-*` headers."},
    EppErrorRow{
        EppError::overloaded, "overloaded", 429, "Too many requests are waiting; try again later.",
        "`DYN_EPP_MAX_INFLIGHT_REQUESTS` is reached, a queue limit of the request's class is reached, "
        "its deadline passed in the queue, or all workers are over an overload threshold."},
    EppErrorRow{EppError::internal_error, "internal_error", 500, "The request could not be routed.",
                "A fault of the Endpoint Picker."},
    EppErrorRow{EppError::tokenizer_bad_answer, "tokenizer_bad_answer", 502,
                "The tokenizer gave no usable answer.",
                "With `DYN_EPP_TOKENIZER_FALLBACK=error`: an answer of another status or shape."},
    EppErrorRow{EppError::no_ready_endpoint, "no_ready_endpoint", 503,
                "No endpoint is ready for this request.",
                "No endpoint is ready, the gateway's subset excludes all of them, or no prefill endpoint is "
                "ready and `DYN_EPP_ON_NO_PREFILL` is `error`."},
    EppErrorRow{EppError::buffers_full, "buffers_full", 503, "Too many request bodies are being received.",
                "`DYN_EPP_MAX_BUFFERED_BYTES` is reached."},
    EppErrorRow{EppError::tokenizer_unavailable, "tokenizer_unavailable", 503,
                "The tokenizer is not reachable.",
                "With `DYN_EPP_TOKENIZER_FALLBACK=error`: no connection, 429 or 503."},
    EppErrorRow{
        EppError::tokenizer_timeout, "tokenizer_timeout", 504, "The tokenizer did not answer in time.",
        "With `DYN_EPP_TOKENIZER_FALLBACK=error`: no answer within `DYN_EPP_TOKENIZATION_TIMEOUT_MS`."},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].error) != i) return false;
  }
  return true;
}
static_assert(in_order() && kRows.size() == static_cast<std::size_t>(EppError::tokenizer_timeout) + 1);

std::string_view type_of(unsigned status) {
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

}  // namespace

const EppErrorRow& row_of(EppError error) {
  return kRows[static_cast<std::size_t>(error)];
}

std::span<const EppErrorRow> all_epp_errors() {
  return kRows;
}

bool may_be_retried(EppError error) {
  const unsigned status = row_of(error).status;
  return status == 429 || status == 503;
}

std::string error_body(EppError error, std::string_view message) {
  const EppErrorRow& row = row_of(error);
  std::string body = R"({"error":{"message":)";
  json::append_quoted(body, message.empty() ? row.message : message);
  body += R"(,"type":")";
  body += type_of(row.status);
  body += R"(","param":null,"code":")";
  body += row.code;
  body += R"("}})";
  return body;
}

std::string epp_error_table_markdown() {
  std::string table = "| Status | `code` | `type` | When |\n|---|---|---|---|\n";
  for (const EppErrorRow& row : kRows) {
    table += "| " + std::to_string(row.status) + " | `" + std::string(row.code) + "` | `" +
             std::string(type_of(row.status)) + "` | " + std::string(row.when) + " |\n";
  }
  return table;
}

}  // namespace handoff::epp
