// One request as it was received.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

  void clear() {
    head.clear();
    parser.reset();
    body.clear();
    body_is_whole = true;
    scan_status = json::ScanStatus::malformed;
    path = {};
    prefill = NoPrefillEndpoint{};
    record.clear();
  }
};

/// Contexts of requests that are over, kept for the next ones so that their many small buffers are not made
/// anew each time. One per loop; outlives what it gave out.
class RequestPool {
 public:
  explicit RequestPool(MemoryBudget& budget) : budget_(budget) {}

  std::shared_ptr<RequestContext> take() {
    std::unique_ptr<RequestContext> context;
    if (free_.empty()) {
      context = std::make_unique<RequestContext>(budget_);
    } else {
      context = std::move(free_.back());
      free_.pop_back();
      context->record.started = Clock::now();
    }
    return {context.release(),
            [this](RequestContext* used) { give_back(std::unique_ptr<RequestContext>(used)); }};
  }

 private:
  static constexpr std::size_t kMaxFree = 64;
  void give_back(std::unique_ptr<RequestContext> context) {
    if (free_.size() == kMaxFree) return;
    context->clear();
    free_.push_back(std::move(context));
  }

  MemoryBudget& budget_;
  std::vector<std::unique_ptr<RequestContext>> free_;
};

}  // namespace handoff::sidecar
