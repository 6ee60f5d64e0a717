#include "sidecar/leg_head.hpp"

#include "sidecar/ascii.hpp"
#include "sidecar/http1/head_text.hpp"

namespace handoff::sidecar {
namespace {

using http1::append_field;

bool is_overridden(std::span<const HeaderOverride> overrides, std::string_view name) {
  for (const auto& field : overrides) {
    if (equals_ignoring_case(field.name, name)) return true;
  }
  return false;
}

}  // namespace

std::string write_leg_head(const LegHead& leg, const LegFraming& framing) {
  std::string out;
  out.reserve(256 + (leg.client == nullptr ? 0 : leg.client->text.size()));
  out += leg.method;
  out += ' ';
  out += leg.target;
  out += " HTTP/1.1\r\n";
  append_field(out, "host", leg.engine->authority);
  bool has_request_id = is_overridden(leg.overrides, "x-request-id");
  if (leg.client != nullptr) {
    for (const auto& field : leg.client->fields) {
      if (!is_forwarded(field.kind) || leg.client->connection.removes(field.name)) continue;
      if (field.kind == HeaderClass::accept_encoding && !leg.keep_accept_encoding) continue;
      if (field.kind == HeaderClass::x_request_id) has_request_id = true;
      if (!leg.overrides.empty() && is_overridden(leg.overrides, field.name)) continue;
      append_field(out, field.name, field.value);
    }
  }
  for (const auto& field : leg.overrides) {
    if (!field.value.empty()) append_field(out, field.name, field.value);
  }
  if (!has_request_id && !leg.request_id_if_absent.empty())
    append_field(out, "x-request-id", leg.request_id_if_absent);
  if (framing.chunked) {
    append_field(out, "transfer-encoding", "chunked");
  } else if (framing.content_length) {
    http1::append_content_length(out, *framing.content_length);
  }
  out += "\r\n";
  return out;
}

}  // namespace handoff::sidecar
