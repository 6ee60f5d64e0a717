#include "epp/server/message_reader.hpp"

#include <utility>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"
#include "epp/ext_proc/routing_headers.hpp"
#include "epp/server/wire_fields.hpp"

namespace handoff::epp {
namespace {

namespace core = envoy::config::core::v3;
namespace wire = envoy::service::ext_proc::v3;
using google::protobuf::internal::WireFormatLite;
using Request = wire::ProcessingRequest;
using Value = google::protobuf::Value;

// A header's bytes with its frame around it, as a guess for the number of headers.
constexpr std::size_t kBytesPerHeader = 24;
// Gateways take a hundred or a thousand.
constexpr std::size_t kMostHeaders = 16'384;

BodyMode mode_of(std::uint64_t number) {
  return number <= static_cast<std::uint64_t>(BodyMode::kGrpc) ? static_cast<BodyMode>(number)
                                                               : BodyMode::kGrpc;
}

// Into what an earlier part has said.
bool read_modes(std::string_view config, BodyModes& modes) {
  using Config = wire::ProtocolConfiguration;
  FieldReader fields(config);
  while (fields.next()) {
    if (fields.tag() == number_tag(Config::kRequestBodyModeFieldNumber)) {
      modes.request = mode_of(fields.number());
    } else if (fields.tag() == number_tag(Config::kResponseBodyModeFieldNumber)) {
      modes.response = mode_of(fields.number());
    }
  }
  return !fields.is_damaged();
}

// Envoy writes raw_value, agentgateway either; pseudo headers come in `value`.
bool read_header(std::string_view header, std::string_view& name, std::string_view& value) {
  std::string_view raw;
  name = value = {};
  FieldReader fields(header);
  while (fields.next()) {
    if (fields.tag() == bytes_tag(core::HeaderValue::kKeyFieldNumber)) {
      name = fields.bytes();
    } else if (fields.tag() == bytes_tag(core::HeaderValue::kRawValueFieldNumber)) {
      raw = fields.bytes();
    } else if (fields.tag() == bytes_tag(core::HeaderValue::kValueFieldNumber)) {
      value = fields.bytes();
    }
  }
  if (!raw.empty()) value = raw;
  return !fields.is_damaged();
}

// Metadata's namespaces and a Struct's members are maps, both in the first field: entries of key and value.
// Of one key the last counts. False when damaged.
bool find_entry(std::string_view map, std::string_view key, std::optional<std::string_view>& found) {
  static_assert(core::Metadata::kFilterMetadataFieldNumber == 1);
  static_assert(google::protobuf::Struct::kFieldsFieldNumber == 1);
  FieldReader entries(map);
  while (entries.next()) {
    if (entries.tag() != bytes_tag(1)) continue;
    std::string_view name;
    std::string_view value;
    FieldReader entry(entries.bytes());
    while (entry.next()) {
      if (entry.tag() == bytes_tag(1)) name = entry.bytes();
      if (entry.tag() == bytes_tag(2)) value = entry.bytes();
    }
    if (entry.is_damaged()) return false;
    if (name == key) found = value;
  }
  return !entries.is_damaged();
}

bool find_value(std::string_view metadata, std::string_view space, std::string_view key,
                std::optional<std::string_view>& value) {
  std::optional<std::string_view> members;
  if (!find_entry(metadata, space, members)) return false;
  return !members || find_entry(*members, key, value);
}

bool read_text(std::string_view value, std::string_view& text) {
  FieldReader fields(value);
  while (fields.next()) {
    if (fields.tag() == bytes_tag(Value::kStringValueFieldNumber)) text = fields.bytes();
  }
  return !fields.is_damaged();
}

}  // namespace

bool MessageReader::deliver(Input& input, bool is_first, ExtProcStream& stream) {
  part_ = 0;
  end_of_stream_ = false;
  opening_ = {};
  metadata_ = {};
  subset_.reset();
  served_ = {};
  if (!read(input) || !read_metadata()) return false;

  if (is_first) stream.on_opening(opening_);
  if (!served_.empty()) stream.on_served_endpoint(served_);
  switch (part_) {
    case Request::kRequestHeadersFieldNumber:
      stream.on_request_headers(std::move(request_headers_), end_of_stream_, std::move(subset_));
      break;
    case Request::kRequestBodyFieldNumber:
      stream.on_request_body(std::move(body_), end_of_stream_);
      break;
    case Request::kRequestTrailersFieldNumber:
      stream.on_request_trailers();
      break;
    case Request::kResponseHeadersFieldNumber:
      stream.on_response_headers(response_headers_.first(":status").value_or(""),
                                 response_headers_.first("content-type").value_or(""), end_of_stream_);
      break;
    case Request::kResponseBodyFieldNumber:
      stream.on_response_body(std::move(body_), end_of_stream_);
      break;
    case Request::kResponseTrailersFieldNumber:
      stream.on_response_trailers();
      break;
    default:
      break;  // of a newer protocol: nothing that needs an answer is known of it
  }
  return true;
}

// Where a message brings more than one part of those that need an answer, the last counts.
bool MessageReader::read(Input& input) {
  for (;;) {
    const std::uint32_t tag = input.ReadTagNoLastTag();
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    std::string_view message;
    bool worked = true;
    switch (tag) {
      case 0:
        return input.ConsumedEntireMessage();
      case bytes_tag(Request::kRequestHeadersFieldNumber):
        request_headers_ = HeaderBlock();
        worked = read_message(input, scratch_, message) && read_headers(message, request_headers_);
        part_ = field;
        break;
      case bytes_tag(Request::kResponseHeadersFieldNumber):
        response_headers_.clear();
        worked = read_message(input, scratch_, message) && read_headers(message, response_headers_);
        part_ = field;
        break;
      case bytes_tag(Request::kRequestBodyFieldNumber):
      case bytes_tag(Request::kResponseBodyFieldNumber):
        worked = read_body(input);
        part_ = field;
        break;
      case bytes_tag(Request::kRequestTrailersFieldNumber):
      case bytes_tag(Request::kResponseTrailersFieldNumber):
        worked = WireFormatLite::SkipField(&input, tag);
        part_ = field;
        break;
      case bytes_tag(Request::kMetadataContextFieldNumber):
        worked = read_message(input, scratch_, message);
        add_metadata(message);
        break;
      case number_tag(Request::kObservabilityModeFieldNumber): {
        std::uint64_t number = 0;
        worked = input.ReadVarint64(&number);
        opening_.observability = number != 0;
        break;
      }
      case bytes_tag(Request::kProtocolConfigFieldNumber):
        if (!opening_.modes) opening_.modes = {.request = BodyMode::kNone, .response = BodyMode::kNone};
        worked = read_message(input, scratch_, message) && read_modes(message, *opening_.modes);
        break;
      default:
        worked = WireFormatLite::SkipField(&input, tag);
    }
    if (!worked) return false;
  }
}

// What comes in two parts is one message: their bytes one after the other are its encoding.
void MessageReader::add_metadata(std::string_view part) {
  if (metadata_.empty()) metadata_scratch_.clear();
  metadata_scratch_ += part;
  metadata_ = metadata_scratch_;
}

// A message within the message, which may lie in several pieces of memory.
bool MessageReader::read_message(Input& input, std::string& scratch, std::string_view& message) {
  int size = 0;
  if (!input.ReadVarintSizeAsInt(&size) || size > input.BytesUntilLimit()) return false;
  const void* data = nullptr;
  int here = 0;
  input.GetDirectBufferPointerInline(&data, &here);
  if (size <= here) {
    message = {static_cast<const char*>(data), static_cast<std::size_t>(size)};
    return input.Skip(size);
  }
  if (!input.ReadString(&scratch, size)) return false;
  message = scratch;
  return true;
}

bool MessageReader::read_headers(std::string_view message, HeaderBlock& headers) {
  end_of_stream_ = false;
  FieldReader fields(message);
  while (fields.next()) {
    if (fields.tag() == number_tag(wire::HttpHeaders::kEndOfStreamFieldNumber)) {
      end_of_stream_ = fields.number() != 0;
    }
    if (fields.tag() != bytes_tag(wire::HttpHeaders::kHeadersFieldNumber)) continue;
    headers.reserve(fields.bytes().size() / kBytesPerHeader, fields.bytes().size());
    FieldReader map(fields.bytes());
    while (map.next()) {
      if (map.tag() != bytes_tag(core::HeaderMap::kHeadersFieldNumber)) continue;
      std::string_view name;
      std::string_view value;
      if (!read_header(map.bytes(), name, value) || headers.size() == kMostHeaders) return false;
      headers.add(name, value);
    }
    if (map.is_damaged()) return false;
  }
  return !fields.is_damaged();
}

bool MessageReader::read_body(Input& input) {
  int size = 0;
  body_.clear();
  end_of_stream_ = false;
  if (!input.ReadVarintSizeAsInt(&size) || size > input.BytesUntilLimit()) return false;
  const auto outer = input.PushLimit(size);
  for (;;) {
    const std::uint32_t tag = input.ReadTagNoLastTag();
    if (tag == 0) return input.CheckEntireMessageConsumedAndPopLimit(outer);
    if (tag == bytes_tag(wire::HttpBody::kBodyFieldNumber)) {
      if (!input.ReadVarintSizeAsInt(&size) || size > input.BytesUntilLimit()) return false;
      if (!input.ReadString(&body_, size)) return false;
    } else if (tag == number_tag(wire::HttpBody::kEndOfStreamFieldNumber)) {
      std::uint64_t number = 0;
      if (!input.ReadVarint64(&number)) return false;
      end_of_stream_ = number != 0;
    } else if (!WireFormatLite::SkipField(&input, tag)) {
      return false;
    }
  }
}

bool MessageReader::read_metadata() {
  if (metadata_.empty()) return true;
  std::optional<std::string_view> value;
  if (part_ == Request::kRequestHeadersFieldNumber) {
    if (!find_value(metadata_, kSubsetNamespace, kSubsetKey, value)) return false;
    return !value || read_subset(*value);
  }
  if (part_ == Request::kResponseHeadersFieldNumber || part_ == Request::kResponseBodyFieldNumber) {
    if (!find_value(metadata_, kDestinationNamespace, kServedKey, value)) return false;
    return !value || read_text(*value, served_);
  }
  return true;
}

// A list of texts, or one text with commas. What is neither allows nothing.
bool MessageReader::read_subset(std::string_view value) {
  std::vector<std::string>& entries = subset_.emplace();
  FieldReader fields(value);
  while (fields.next()) {
    if (fields.tag() == bytes_tag(Value::kListValueFieldNumber)) {
      entries.clear();
      FieldReader list(fields.bytes());
      while (list.next()) {
        std::string_view text;
        if (list.tag() != bytes_tag(google::protobuf::ListValue::kValuesFieldNumber)) continue;
        if (!read_text(list.bytes(), text)) return false;
        entries.emplace_back(text);
      }
      if (list.is_damaged()) return false;
    } else if (fields.tag() == bytes_tag(Value::kStringValueFieldNumber)) {
      entries.clear();
      for (std::string_view rest = fields.bytes(); !rest.empty();) {
        const auto comma = rest.find(',');
        entries.emplace_back(rest.substr(0, comma));
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
      }
    }
  }
  return !fields.is_damaged();
}

}  // namespace handoff::epp
