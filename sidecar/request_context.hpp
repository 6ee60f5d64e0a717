// One request as it was received.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "shared/json/object_scan.hpp"
#include "sidecar/exchange_record.hpp"
#include "sidecar/http1/message_head.hpp"
#include "sidecar/http1/message_parser.hpp"
#include "sidecar/prefill_endpoint.hpp"
#include "sidecar/request_body.hpp"

namespace handoff::sidecar {

/// Everything that lives as long as a request is being served: head, body and what was found in them. Shared
/// by the session and the legs that outlive an answer (lingering ones), so that what they refer to stays.
struct RequestContext {
  explicit RequestContext(MemoryBudget& budget) : body(budget) {}

  http1::RequestHead head;
  http1::RequestParser parser;
  RequestBody body;
  bool body_is_whole = true;  // false: more of it is with the client
  json::ObjectScan scan;
  json::ScanStatus scan_status = json::ScanStatus::malformed;
  std::string path_buffer;
  std::string_view path;  // for route decisions
  PrefillHint prefill = NoPrefillEndpoint{};
  ExchangeRecord record;
};

}  // namespace handoff::sidecar
