#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace handoff::epp {

// Everything the Endpoint Picker itself tells a client when it can't route a request: a closed set, with one
// table (in the .cpp) that gives each its status. The names are the `code` of the error body.
enum class EppError : std::uint8_t {
  invalid_request,
  model_not_found,
  request_timeout,
  request_conflict,
  request_too_large,
  too_many_metadata_headers,
  overloaded,
  internal_error,
  tokenizer_bad_answer,
  no_ready_endpoint,
  buffers_full,
  tokenizer_unavailable,
  tokenizer_timeout,
};

// One row of the table. All text is static.
struct EppErrorRow {
  EppError error;
  std::string_view code;
  unsigned status;
  std::string_view message;  // when the place of failure has nothing better to say
  std::string_view when;     // for the docs
};

const EppErrorRow& row_of(EppError error);
std::span<const EppErrorRow> all_epp_errors();

// OpenAI's shape: {"error":{"message","type","param","code"}}. `type` follows the status: rate_limit_error
// for 429, invalid_request_error for any other 4xx, else server_error. Valid UTF-8 whatever `message` holds.
std::string error_body(EppError error, std::string_view message);

// Whether retry-after goes with it: 429 and 503.
bool may_be_retried(EppError error);

// The table for the docs.
std::string epp_error_table_markdown();

}  // namespace handoff::epp
