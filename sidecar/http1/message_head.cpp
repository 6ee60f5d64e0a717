#include "sidecar/http1/message_head.hpp"

#include "sidecar/ascii.hpp"

namespace handoff::sidecar::http1 {

std::optional<std::string_view> MessageHead::find(std::string_view name) const {
  for (const auto& field : fields) {
    if (equals_ignoring_case(field.name, name)) return field.value;
  }
  return std::nullopt;
}

void MessageHead::clear_common() {
  text.clear();
  fields.clear();
  version = 11;
  keep_alive = false;
  chunked = false;
  connection = {};
  content_length.reset();
}

void RequestHead::clear() {
  clear_common();
  method = {};
  target = {};
  expects_continue = false;
}

void ResponseHead::clear() {
  clear_common();
  status = 0;
  reason = {};
  body_to_eof = false;
}

}  // namespace handoff::sidecar::http1
