#include "epp/server/message_codec.hpp"

#include <array>
#include <cstddef>
#include <utility>

#include <google/protobuf/arena.h>

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
  std::size_t bytes = 0;
  for (const auto& header : map.headers()) bytes += header.key().size() + value_of(header).size();
  block.reserve(static_cast<std::size_t>(map.headers_size()), bytes);
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

// Beside what each answer changes, a route is the same message every time.
void start_route(WireResponse& out) {
  out.mutable_request_headers()->mutable_response()->set_clear_route_cache(true);
  // The same as the header, for gateways that route by metadata.
  Struct& endpoint = *(*out.mutable_dynamic_metadata()->mutable_fields())[std::string(kDestinationNamespace)]
                          .mutable_struct_value();
  (*endpoint.mutable_fields())[std::string(kDestinationHeader)].set_string_value("");
}

google::protobuf::Value& destination_metadata(WireResponse& out) {
  auto& space = out.mutable_dynamic_metadata()->mutable_fields()->at(std::string(kDestinationNamespace));
  return space.mutable_struct_value()->mutable_fields()->at(std::string(kDestinationHeader));
}

void change_route(const RouteAnswer& route, google::protobuf::Value& metadata, WireResponse& out) {
  auto& mutation = *out.mutable_request_headers()->mutable_response()->mutable_header_mutation();
  // Cleared elements keep their memory for the next ones.
  mutation.mutable_set_headers()->Clear();
  mutation.mutable_remove_headers()->Clear();
  set_header(mutation, kDestinationHeader, route.destination);
  for (const auto& [name, value] : route.set_headers) set_header(mutation, name, value);
  for (const std::string_view name : controlled_headers()) {
    if (!sets(route, name)) mutation.add_remove_headers(name.data(), name.size());
  }
  if (route.replaced_body) mutation.add_remove_headers("content-length");
  metadata.set_string_value(route.destination);
}

wire::StreamedBodyResponse& start_streamed(wire::BodyResponse& out) {
  return *out.mutable_response()->mutable_body_mutation()->mutable_streamed_response();
}

void change_streamed(BodyAnswer&& answer, wire::StreamedBodyResponse& streamed) {
  *streamed.mutable_body() = std::move(answer.bytes);
  streamed.set_end_of_stream(answer.end_of_stream);
}

// The answers without content: "continue".
void encode_plain(const Answer& answer, WireResponse& out) {
  if (const auto* headers = std::get_if<HeadersAnswer>(&answer)) {
    auto* mine = headers->direction == Direction::kRequest ? out.mutable_request_headers()
                                                           : out.mutable_response_headers();
    mine->mutable_response();
  } else if (const auto* body = std::get_if<BodyAnswer>(&answer)) {
    auto* mine =
        body->direction == Direction::kRequest ? out.mutable_request_body() : out.mutable_response_body();
    mine->mutable_response();
  } else if (std::get<TrailersAnswer>(answer).direction == Direction::kRequest) {
    out.mutable_request_trailers();
  } else {
    out.mutable_response_trailers();
  }
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

class MessageCodec::Impl {
 public:
  explicit Impl(std::uint64_t retry_after_secs)
      : retry_after_secs_(retry_after_secs), arena_(arena_options()) {
    start_route(route_);
    destination_ = &destination_metadata(route_);
    request_piece_ = &start_streamed(*request_body_.mutable_request_body());
    response_piece_ = &start_streamed(*response_body_.mutable_response_body());
  }

  WireRequest& fresh_request() {
    arena_.Reset();
    return *google::protobuf::Arena::CreateMessage<WireRequest>(&arena_);
  }

  const WireResponse& encode(Answer&& answer) {
    if (auto* headers = std::get_if<HeadersAnswer>(&answer); headers != nullptr && headers->route) {
      change_route(*headers->route, *destination_, route_);
      return route_;
    }
    if (auto* body = std::get_if<BodyAnswer>(&answer); body != nullptr && body->streamed) {
      const bool is_request = body->direction == Direction::kRequest;
      change_streamed(std::move(*body), is_request ? *request_piece_ : *response_piece_);
      return is_request ? request_body_ : response_body_;
    }
    other_.Clear();
    if (const auto* refusal = std::get_if<Refusal>(&answer)) {
      encode_refusal(*refusal, retry_after_secs_, other_);
    } else {
      encode_plain(answer, other_);
    }
    return other_;
  }

 private:
  google::protobuf::ArenaOptions arena_options() {
    google::protobuf::ArenaOptions options;
    options.initial_block = block_.data();
    options.initial_block_size = block_.size();
    return options;
  }

  const std::uint64_t retry_after_secs_;
  // As much as the headers of most requests take.
  alignas(std::max_align_t) std::array<char, 16 * 1024> block_;
  google::protobuf::Arena arena_;
  WireResponse route_;
  google::protobuf::Value* destination_;  // within route_
  WireResponse request_body_;
  wire::StreamedBodyResponse* request_piece_;
  WireResponse response_body_;
  wire::StreamedBodyResponse* response_piece_;
  WireResponse other_;
};

MessageCodec::MessageCodec(std::uint64_t retry_after_secs)
    : impl_(std::make_unique<Impl>(retry_after_secs)) {}
MessageCodec::~MessageCodec() = default;
WireRequest& MessageCodec::fresh_request() {
  return impl_->fresh_request();
}
const WireResponse& MessageCodec::encode(Answer&& answer) {
  return impl_->encode(std::move(answer));
}

}  // namespace handoff::epp
