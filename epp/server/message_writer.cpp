#include "epp/server/message_writer.hpp"

#include <algorithm>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"
#include "epp/ext_proc/routing_headers.hpp"
#include "epp/server/wire_fields.hpp"

namespace handoff::epp {
namespace {

namespace core = envoy::config::core::v3;
namespace wire = envoy::service::ext_proc::v3;
using google::protobuf::Struct;
using google::protobuf::Value;
using Response = wire::ProcessingResponse;

constexpr std::size_t index_of(Direction direction) {
  return direction == Direction::kRequest ? 0 : 1;
}

bool may_be_set(std::string_view name) {
  return std::ranges::find(settable_headers(), name) != settable_headers().end();
}

bool sets(const RouteAnswer& route, std::string_view name) {
  return std::ranges::any_of(route.set_headers, [&](const auto& header) { return header.first == name; });
}

void append_removal(std::string& mutation, std::string_view name) {
  append_field(mutation, wire::HeaderMutation::kRemoveHeadersFieldNumber, name);
}

// An entry of a map: a key and a message of so many bytes, which follow.
void append_entry_head(std::string& out, int map, std::string_view key, std::size_t value) {
  append_head(out, map, field_size(key.size()) + field_size(value));
  append_field(out, 1, key);
  append_head(out, 2, value);
}
constexpr std::size_t entry_size(std::string_view key, std::size_t value) {
  return field_size(field_size(key.size()) + field_size(value));
}

// The same as the header, for gateways that route by metadata: {"envoy.lb": {<header>: <destination>}}.
void append_metadata(std::string& out, std::string_view destination) {
  const std::size_t text = field_size(destination.size());
  const std::size_t inner = entry_size(kDestinationHeader, text);
  append_head(out, Response::kDynamicMetadataFieldNumber,
              entry_size(kDestinationNamespace, field_size(inner)));
  append_entry_head(out, Struct::kFieldsFieldNumber, kDestinationNamespace, field_size(inner));
  append_head(out, Value::kStructValueFieldNumber, inner);
  append_entry_head(out, Struct::kFieldsFieldNumber, kDestinationHeader, text);
  append_field(out, Value::kStringValueFieldNumber, destination);
}

void set_header(wire::HeaderMutation& mutation, std::string_view name, std::string_view value) {
  auto& option = *mutation.add_set_headers();
  option.set_append_action(core::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
  option.mutable_header()->set_key(name.data(), name.size());
  option.mutable_header()->set_raw_value(value.data(), value.size());
}

}  // namespace

MessageWriter::MessageWriter(std::uint64_t retry_after_secs) : retry_after_secs_(retry_after_secs) {
  for (const auto direction : {Direction::kRequest, Direction::kResponse}) {
    const bool is_request = direction == Direction::kRequest;
    Response headers;
    (is_request ? headers.mutable_request_headers() : headers.mutable_response_headers())->mutable_response();
    plain_headers_[index_of(direction)] = headers.SerializeAsString();
    Response body;
    (is_request ? body.mutable_request_body() : body.mutable_response_body())->mutable_response();
    plain_body_[index_of(direction)] = body.SerializeAsString();
    Response trailers;
    (void)(is_request ? trailers.mutable_request_trailers() : trailers.mutable_response_trailers());
    plain_trailers_[index_of(direction)] = trailers.SerializeAsString();
  }
  for (const std::string_view name : controlled_headers()) {
    if (!may_be_set(name)) append_removal(never_set_, name);
  }
}

MessageWriter::Encoded MessageWriter::encode(const Answer& answer) {
  if (const auto* body = std::get_if<BodyAnswer>(&answer)) {
    return body->streamed ? encode_piece(*body) : Encoded{plain_body_[index_of(body->direction)], {}, {}};
  }
  if (const auto* headers = std::get_if<HeadersAnswer>(&answer)) {
    return headers->route ? encode_route(*headers->route)
                          : Encoded{plain_headers_[index_of(headers->direction)], {}, {}};
  }
  if (const auto* refusal = std::get_if<Refusal>(&answer)) return encode_refusal(*refusal);
  return {plain_trailers_[index_of(std::get<TrailersAnswer>(answer).direction)], {}, {}};
}

MessageWriter::Encoded MessageWriter::encode_route(const RouteAnswer& route) {
  mutation_.clear();
  append_set_header(kDestinationHeader, route.destination);
  for (const auto& [name, value] : route.set_headers) append_set_header(name, value);
  for (const std::string_view name : settable_headers()) {
    if (!sets(route, name)) append_removal(mutation_, name);
  }
  mutation_ += never_set_;
  if (route.replaced_body) append_removal(mutation_, "content-length");

  constexpr std::size_t kNumber = 2;
  const std::size_t common = field_size(mutation_.size()) + kNumber;
  text_.clear();
  append_head(text_, Response::kRequestHeadersFieldNumber, field_size(common));
  append_head(text_, wire::HeadersResponse::kResponseFieldNumber, common);
  append_field(text_, wire::CommonResponse::kHeaderMutationFieldNumber, mutation_);
  append_number(text_, wire::CommonResponse::kClearRouteCacheFieldNumber, 1);
  append_metadata(text_, route.destination);
  return {text_, {}, {}};
}

void MessageWriter::append_set_header(std::string_view name, std::string_view value) {
  using Option = core::HeaderValueOption;
  constexpr std::size_t kNumber = 2;
  const std::size_t header = field_size(name.size()) + field_size(value.size());
  append_head(mutation_, wire::HeaderMutation::kSetHeadersFieldNumber, field_size(header) + kNumber);
  append_head(mutation_, Option::kHeaderFieldNumber, header);
  append_field(mutation_, core::HeaderValue::kKeyFieldNumber, name);
  append_field(mutation_, core::HeaderValue::kRawValueFieldNumber, value);
  append_number(mutation_, Option::kAppendActionFieldNumber, Option::OVERWRITE_IF_EXISTS_OR_ADD);
}

MessageWriter::Encoded MessageWriter::encode_piece(const BodyAnswer& piece) {
  static constexpr std::string_view kEnd("\x10\x01", 2);
  static_assert(kEnd.front() == number_tag(wire::StreamedBodyResponse::kEndOfStreamFieldNumber));
  const std::string_view tail = piece.end_of_stream ? kEnd : std::string_view();
  const std::size_t bytes = piece.bytes.empty() ? 0 : field_size(piece.bytes.size());
  const std::size_t streamed = bytes + tail.size();
  const std::size_t mutation = field_size(streamed);
  const std::size_t common = field_size(mutation);
  text_.clear();
  append_head(text_,
              piece.direction == Direction::kRequest ? Response::kRequestBodyFieldNumber
                                                     : Response::kResponseBodyFieldNumber,
              field_size(common));
  append_head(text_, wire::BodyResponse::kResponseFieldNumber, common);
  append_head(text_, wire::CommonResponse::kBodyMutationFieldNumber, mutation);
  append_head(text_, wire::BodyMutation::kStreamedResponseFieldNumber, streamed);
  if (bytes != 0) append_head(text_, wire::StreamedBodyResponse::kBodyFieldNumber, piece.bytes.size());
  return {text_, piece.bytes, tail};
}

MessageWriter::Encoded MessageWriter::encode_refusal(const Refusal& refusal) {
  const EppErrorRow& row = row_of(refusal.error);
  Response message;
  auto& immediate = *message.mutable_immediate_response();
  immediate.mutable_status()->set_code(static_cast<envoy::type::v3::StatusCode>(row.status));
  set_header(*immediate.mutable_headers(), "content-type", "application/json");
  if (retry_after_secs_ > 0 && may_be_retried(refusal.error)) {
    set_header(*immediate.mutable_headers(), "retry-after", std::to_string(retry_after_secs_));
  }
  *immediate.mutable_body() = error_body(refusal.error, refusal.message);
  immediate.set_details("handoff_epp_" + std::string(row.code));
  message.SerializeToString(&text_);
  return {text_, {}, {}};
}

}  // namespace handoff::epp
