#include "epp/server/message_codec.hpp"

#include <utility>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"
#include "epp/ext_proc/routing_headers.hpp"

namespace handoff::epp {
namespace {

namespace core = envoy::config::core::v3;
namespace wire = envoy::service::ext_proc::v3;
using google::protobuf::Struct;

// Envoy writes raw_value, agentgateway either; pseudo headers come in `value`.
const std::string& value_of(const core::HeaderValue& header) {
  return header.raw_value().empty() ? header.value() : header.raw_value();
}

HeaderBlock block_of(const core::HeaderMap& map) {
  HeaderBlock block;
  for (const auto& header : map.headers()) block.add(header.key(), value_of(header));
  return block;
}

std::string_view find(const core::HeaderMap& map, std::string_view name) {
  for (const auto& header : map.headers()) {
    if (header.key() == name) return value_of(header);
  }
  return {};
}

const google::protobuf::Value* metadata(const WireRequest& message, std::string_view space,
                                        std::string_view key) {
  if (!message.has_metadata_context()) return nullptr;
  const auto& spaces = message.metadata_context().filter_metadata();
  const auto found = spaces.find(std::string(space));
  if (found == spaces.end()) return nullptr;
  const auto value = found->second.fields().find(std::string(key));
  return value == found->second.fields().end() ? nullptr : &value->second;
}

// A list of texts, or one text with commas. What is neither allows nothing.
std::optional<std::vector<std::string>> subset_of(const WireRequest& message) {
  const auto* value = metadata(message, kSubsetNamespace, kSubsetKey);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> entries;
  for (const auto& entry : value->list_value().values()) entries.push_back(entry.string_value());
  std::string_view rest = value->string_value();
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    entries.emplace_back(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return entries;
}

BodyMode mode_of(int number) {
  const bool known = number >= 0 && number <= static_cast<int>(BodyMode::kGrpc);
  return known ? static_cast<BodyMode>(number) : BodyMode::kGrpc;
}

StreamOpening opening_of(const WireRequest& message) {
  StreamOpening opening;
  opening.observability = message.observability_mode();
  if (message.has_protocol_config()) {
    const auto& config = message.protocol_config();
    opening.modes = BodyModes{.request = mode_of(config.request_body_mode()),
                              .response = mode_of(config.response_body_mode())};
  }
  return opening;
}

void deliver_served(const WireRequest& message, ExtProcStream& stream) {
  const auto* served = metadata(message, kDestinationNamespace, kServedKey);
  if (served != nullptr && !served->string_value().empty()) stream.on_served_endpoint(served->string_value());
}

void set_header(wire::HeaderMutation& mutation, std::string_view name, std::string_view value) {
  auto& option = *mutation.add_set_headers();
  option.set_append_action(core::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
  option.mutable_header()->set_key(name.data(), name.size());
  option.mutable_header()->set_raw_value(value.data(), value.size());
}

bool sets(const RouteAnswer& route, std::string_view name) {
  for (const auto& [mine, value] : route.set_headers) {
    if (mine == name) return true;
  }
  return false;
}

void encode_route(const RouteAnswer& route, WireResponse& out) {
  auto& common = *out.mutable_request_headers()->mutable_response();
  common.set_clear_route_cache(true);
  auto& mutation = *common.mutable_header_mutation();
  set_header(mutation, kDestinationHeader, route.destination);
  for (const auto& [name, value] : route.set_headers) set_header(mutation, name, value);
  for (const std::string_view name : controlled_headers()) {
    if (!sets(route, name)) mutation.add_remove_headers(name.data(), name.size());
  }
  if (route.replaced_body) mutation.add_remove_headers("content-length");
  // The same as the header, for gateways that route by metadata.
  Struct& endpoint = *(*out.mutable_dynamic_metadata()->mutable_fields())[std::string(kDestinationNamespace)]
                          .mutable_struct_value();
  (*endpoint.mutable_fields())[std::string(kDestinationHeader)].set_string_value(route.destination);
}

void encode_headers(HeadersAnswer&& answer, WireResponse& out) {
  if (answer.route) {
    encode_route(*answer.route, out);
    return;
  }
  auto* headers = answer.direction == Direction::kRequest ? out.mutable_request_headers()
                                                          : out.mutable_response_headers();
  headers->mutable_response();
}

void encode_body(BodyAnswer&& answer, WireResponse& out) {
  auto* body =
      answer.direction == Direction::kRequest ? out.mutable_request_body() : out.mutable_response_body();
  auto* common = body->mutable_response();
  if (!answer.streamed) return;
  auto* streamed = common->mutable_body_mutation()->mutable_streamed_response();
  *streamed->mutable_body() = std::move(answer.bytes);
  streamed->set_end_of_stream(answer.end_of_stream);
}

void encode_refusal(const Refusal& refusal, std::uint64_t retry_after_secs, WireResponse& out) {
  const EppErrorRow& row = row_of(refusal.error);
  auto& immediate = *out.mutable_immediate_response();
  immediate.mutable_status()->set_code(static_cast<envoy::type::v3::StatusCode>(row.status));
  set_header(*immediate.mutable_headers(), "content-type", "application/json");
  if (retry_after_secs > 0 && may_be_retried(refusal.error)) {
    set_header(*immediate.mutable_headers(), "retry-after", std::to_string(retry_after_secs));
  }
  *immediate.mutable_body() = error_body(refusal.error, refusal.message);
  immediate.set_details("handoff_epp_" + std::string(row.code));
}

}  // namespace

void deliver(WireRequest& message, bool is_first, ExtProcStream& stream) {
  if (is_first) stream.on_opening(opening_of(message));
  switch (message.request_case()) {
    case WireRequest::kRequestHeaders:
      stream.on_request_headers(block_of(message.request_headers().headers()),
                                message.request_headers().end_of_stream(), subset_of(message));
      return;
    case WireRequest::kRequestBody:
      stream.on_request_body(std::move(*message.mutable_request_body()->mutable_body()),
                             message.request_body().end_of_stream());
      return;
    case WireRequest::kRequestTrailers:
      stream.on_request_trailers();
      return;
    case WireRequest::kResponseHeaders: {
      deliver_served(message, stream);
      const auto& headers = message.response_headers().headers();
      stream.on_response_headers(find(headers, ":status"), find(headers, "content-type"),
                                 message.response_headers().end_of_stream());
      return;
    }
    case WireRequest::kResponseBody:
      deliver_served(message, stream);
      stream.on_response_body(std::move(*message.mutable_response_body()->mutable_body()),
                              message.response_body().end_of_stream());
      return;
    case WireRequest::kResponseTrailers:
      stream.on_response_trailers();
      return;
    case WireRequest::REQUEST_NOT_SET:
      return;  // of a newer protocol: nothing that needs an answer is known of it
  }
}

void encode(Answer&& answer, std::uint64_t retry_after_secs, WireResponse& out) {
  out.Clear();
  if (auto* headers = std::get_if<HeadersAnswer>(&answer)) {
    encode_headers(std::move(*headers), out);
  } else if (auto* body = std::get_if<BodyAnswer>(&answer)) {
    encode_body(std::move(*body), out);
  } else if (const auto* trailers = std::get_if<TrailersAnswer>(&answer)) {
    if (trailers->direction == Direction::kRequest) {
      out.mutable_request_trailers();
    } else {
      out.mutable_response_trailers();
    }
  } else {
    encode_refusal(std::get<Refusal>(answer), retry_after_secs, out);
  }
}

}  // namespace handoff::epp
