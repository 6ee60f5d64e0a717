#include "sidecar/request_rules.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "shared/json/encoding.hpp"
#include "sidecar/ascii.hpp"
#include "sidecar/request_target.hpp"

namespace handoff::sidecar {
namespace {

// Where a routing header asks for a backend although none is loaded: these requests would be disaggregated by
// any.
constexpr std::array<std::string_view, 5> kWellKnownPaths = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"};

bool is_backend_route(const SharedPlan& plan, std::string_view method, std::string_view path) {
  if (!plan.backend)
    return method == "POST" && std::ranges::find(kWellKnownPaths, path) != kWellKnownPaths.end();
  return std::ranges::any_of(plan.backend->routes(),
                             [&](const auto& route) { return route.path == path && route.method == method; });
}

bool names_json(std::string_view content_type) {
  const auto name = trim_blanks(content_type.substr(0, content_type.find(';')));
  return name.empty() || equals_ignoring_case(name, "application/json") ||
         (name.size() > 5 && equals_ignoring_case(name.substr(name.size() - 5), "+json")) ||
         equals_ignoring_case(name, "text/json");
}

bool is_identity(std::string_view coding) {
  return coding.empty() || equals_ignoring_case(coding, "identity");
}

bool is_encoded(const http1::RequestHead& head) {
  return std::ranges::any_of(head.fields, [](const auto& field) {
    return field.kind == HeaderClass::content_encoding && !is_identity(field.value);
  });
}

}  // namespace

std::optional<Refusal> check_head(const http1::RequestHead& head) {
  if (head.method == "CONNECT") return Refusal{SidecarError::connect_not_supported, {}};
  if (target_form(head.target) == TargetForm::invalid) {
    return Refusal{SidecarError::bad_request, "The request target is not a path or an http URL."};
  }
  if (head.connection.upgrade()) {
    const auto* upgrade = head.find(HeaderClass::upgrade);
    // An offer of HTTP/2 is declined by answering in HTTP/1.1; other protocols would be another conversation.
    if (upgrade != nullptr && !equals_ignoring_case(upgrade->value, "h2c")) {
      return Refusal{SidecarError::upgrade_not_supported, {}};
    }
  }
  if (head.find(HeaderClass::expect) != nullptr && !head.expects_continue) {
    return Refusal{SidecarError::expectation_failed, {}};
  }
  return std::nullopt;
}

RouteKind classify_route(const SharedPlan& plan, RequestContext& request) {
  const auto& head = request.head;
  request.path = normalised_path(head.target, request.path_buffer);
  if (head.method == "GET" || head.method == "HEAD") {
    if (request.path == "/health") return RouteKind::local_health;
    if (request.path == "/ready") return RouteKind::local_ready;
  }
  if (is_backend_route(plan, head.method, request.path)) return RouteKind::generation;
  if (head.target.find('%') != std::string_view::npos) {
    std::string buffer;
    if (is_backend_route(plan, head.method, fully_decoded_path(head.target, buffer)))
      return RouteKind::disguised;
  }
  return RouteKind::other;
}

std::optional<Refusal> read_prefill_hint(const SharedPlan& plan, RequestContext& request) {
  std::array<std::string_view, 2> lines;  // more than one is wrong, however many
  std::size_t count = 0;
  for (const auto& field : request.head.fields) {
    if (field.kind == HeaderClass::x_prefiller_host_port && count < lines.size())
      lines[count++] = field.value;
  }
  if (count == 0) {
    if (plan.usual_prefill) {
      request.prefill = *plan.usual_prefill;
      request.record.prefill_endpoint = plan.usual_prefill->authority();
    }
    return std::nullopt;
  }
  request.prefill = parse_prefill_hint(std::span(lines).first(count));
  const auto* endpoint = std::get_if<PrefillEndpoint>(&request.prefill);
  if (endpoint == nullptr) return Refusal{SidecarError::invalid_epp_metadata, {}};
  if (!plan.allowlist.allows(*endpoint)) return Refusal{SidecarError::prefill_endpoint_not_allowed, {}};
  if (!plan.backend) return Refusal{SidecarError::pd_adapter_unavailable, {}};
  request.record.prefill_endpoint = endpoint->authority();
  return std::nullopt;
}

bool may_be_json(const http1::RequestHead& head) {
  bool typed = false;
  for (const auto& field : head.fields) {  // of several lines each engine may go by another
    if (field.kind != HeaderClass::content_type) continue;
    if (names_json(field.value)) return true;
    typed = true;
  }
  return !typed;
}

std::optional<Refusal> check_body(const SharedPlan& plan, RequestContext& request, bool strict) {
  const auto body = request.body.view();
  if (is_encoded(request.head)) {
    if (strict) return Refusal{SidecarError::unsupported_content_encoding, {}};
  } else if (json::detect_encoding(body) != json::EncodingProblem::none) {
    // The engines' JSON readers guess encodings, and would find in it what the scan below can't see.
    return Refusal{SidecarError::invalid_pd_request,
                   "The request body must be JSON in UTF-8 without a byte order mark."};
  }
  request.scan_status = request.scan.scan(body);
  if (plan.config.allow_client_handoff) return std::nullopt;
  if (request.scan_status == json::ScanStatus::object) {
    if (const auto forged = plan.guard.find_forged(request.scan)) {
      return Refusal{SidecarError::invalid_pd_request,
                     "This field is set by the sidecar and may not be sent.", forged};
    }
  } else if (request.scan_status == json::ScanStatus::too_many_members ||
             (strict && !body.empty() && request.scan_status != json::ScanStatus::not_an_object)) {
    // No engine would serve it, and what can't be looked into is not passed on, on any path: a handoff could
    // hide behind the last member that was looked at.
    return Refusal{SidecarError::invalid_pd_request,
                   "The request body is not valid JSON, or has too many members."};
  }
  return std::nullopt;
}

}  // namespace handoff::sidecar
