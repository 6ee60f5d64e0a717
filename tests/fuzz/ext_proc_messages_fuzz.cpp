// Arbitrary bytes as messages of a gateway, against the generated classes: what they take must be taken and
// mean the same, also when it comes in pieces of memory. Input: messages, each behind two bytes of length.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"
#include "epp/ext_proc/ext_proc_stream.hpp"
#include "epp/ext_proc/routing_headers.hpp"
#include "epp/server/message_reader.hpp"

namespace {

using namespace handoff::epp;
using envoy::service::ext_proc::v3::HttpHeaders;
using envoy::service::ext_proc::v3::ProcessingRequest;
using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::CodedInputStream;

constexpr std::size_t kMostMessages = 8;
constexpr int kMostHeaders = 16'384;  // the reader's bound

void check(bool holds) {
  if (!holds) std::abort();
}

// Everything that a stream is told and says, as text.
class Recorder final : public RequestEvents {
 public:
  void on_request(ReceivedRequest received) override {
    add("request");
    for (std::size_t i = 0; i < received.headers.size(); ++i) {
      add(received.headers.name(i));
      add(received.headers.value(i));
    }
    if (received.body) add(*received.body);
    if (received.subset) {
      add("subset");
      for (const std::string& entry : *received.subset) add(entry);
    }
    RouteAnswer answer;
    answer.destination = "10.0.0.7:8000";
    stream->route(std::move(answer));
  }
  void on_abandoned() override { add("abandoned"); }
  void on_response_started(unsigned status, bool event_stream) override {
    add(std::to_string(status) + (event_stream ? "sse" : ""));
  }
  void on_first_response_byte() override { add("first byte"); }
  void on_response_bytes(std::string_view bytes) override { add(bytes); }
  void on_served_endpoint(std::string_view endpoint) override { add(endpoint); }
  void on_response_ended() override { add("ended"); }
  void add(std::string_view text) { log.append(std::to_string(text.size())).append(":").append(text); }

  ExtProcStream* stream = nullptr;
  std::string log;
};

struct Exchange {
  Exchange() { recorder.stream = &stream; }

  // What has been said up to now, answers too.
  std::string said() {
    while (const auto answer = stream.next()) {
      recorder.add("answer " + std::to_string(answer->index()));
      if (const auto* body = std::get_if<BodyAnswer>(&*answer)) {
        recorder.add(body->bytes);
        recorder.add(body->end_of_stream ? "end" : "more");
      }
    }
    return recorder.log + (stream.ended() ? stream.ended()->message : "");
  }

  ExtProcLimits limits;
  Recorder recorder;
  ExtProcStream stream{limits, recorder};
  MessageReader reader;
  bool is_first = true;
};

bool deliver(Exchange& to, const std::string& bytes) {
  CodedInputStream input(reinterpret_cast<const std::uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  return to.reader.deliver(input, std::exchange(to.is_first, false), to.stream);
}

bool deliver_in_pieces(Exchange& to, const std::string& bytes, int piece) {
  ArrayInputStream pieces(bytes.data(), static_cast<int>(bytes.size()), piece);
  CodedInputStream input(&pieces);
  input.PushLimit(static_cast<int>(bytes.size()));
  return to.reader.deliver(input, std::exchange(to.is_first, false), to.stream);
}

// --- the same with generated classes ---

HeaderBlock headers_of(const HttpHeaders& message) {
  HeaderBlock block;
  for (const auto& header : message.headers().headers()) {
    block.add(header.key(), header.raw_value().empty() ? header.value() : header.raw_value());
  }
  return block;
}

BodyMode mode_of(int number) {
  return number >= 0 && number <= static_cast<int>(BodyMode::kGrpc) ? static_cast<BodyMode>(number)
                                                                    : BodyMode::kGrpc;
}

const google::protobuf::Value* value_in(const ProcessingRequest& message, std::string_view space,
                                        std::string_view key) {
  const auto& spaces = message.metadata_context().filter_metadata();
  const auto found = spaces.find(std::string(space));
  if (found == spaces.end()) return nullptr;
  const auto value = found->second.fields().find(std::string(key));
  return value == found->second.fields().end() ? nullptr : &value->second;
}

std::optional<std::vector<std::string>> subset_of(const ProcessingRequest& message) {
  const auto* value = value_in(message, kSubsetNamespace, kSubsetKey);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> entries;
  if (value->has_list_value()) {
    for (const auto& entry : value->list_value().values()) entries.push_back(entry.string_value());
  }
  for (std::string_view rest = value->string_value(); !rest.empty();) {
    const auto comma = rest.find(',');
    entries.emplace_back(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return entries;
}

void tell(Exchange& to, const ProcessingRequest& message) {
  if (std::exchange(to.is_first, false)) {
    StreamOpening opening;
    opening.observability = message.observability_mode();
    if (message.has_protocol_config()) {
      opening.modes = {.request = mode_of(message.protocol_config().request_body_mode()),
                       .response = mode_of(message.protocol_config().response_body_mode())};
    }
    to.stream.on_opening(opening);
  }
  if (message.has_response_headers() || message.has_response_body()) {
    const auto* served = value_in(message, kDestinationNamespace, kServedKey);
    if (served != nullptr && !served->string_value().empty())
      to.stream.on_served_endpoint(served->string_value());
  }
  if (message.has_request_headers()) {
    to.stream.on_request_headers(headers_of(message.request_headers()),
                                 message.request_headers().end_of_stream(), subset_of(message));
  } else if (message.has_request_body()) {
    to.stream.on_request_body(message.request_body().body(), message.request_body().end_of_stream());
  } else if (message.has_request_trailers()) {
    to.stream.on_request_trailers();
  } else if (message.has_response_headers()) {
    const HeaderBlock headers = headers_of(message.response_headers());
    to.stream.on_response_headers(headers.first(":status").value_or(""),
                                  headers.first("content-type").value_or(""),
                                  message.response_headers().end_of_stream());
  } else if (message.has_response_body()) {
    to.stream.on_response_body(message.response_body().body(), message.response_body().end_of_stream());
  } else if (message.has_response_trailers()) {
    to.stream.on_response_trailers();
  }
}

bool is_within_bounds(const ProcessingRequest& message) {
  return message.request_headers().headers().headers_size() <= kMostHeaders &&
         message.response_headers().headers().headers_size() <= kMostHeaders;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // it says so of each text that is no UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Exchange raw;
  Exchange in_pieces;
  Exchange canonical;
  Exchange generated;
  bool is_canonical = true;  // up to now the bytes are as the generated classes would write them
  for (std::size_t number = 0; number < kMostMessages && size >= 2; ++number) {
    const std::size_t length = std::min<std::size_t>(data[0] | std::size_t{data[1]} << 8, size - 2);
    const std::string bytes(reinterpret_cast<const char*>(data) + 2, length);
    const int piece = 1 + data[0] % 13;
    data += 2 + length;
    size -= 2 + length;

    const bool taken = deliver(raw, bytes);
    check(deliver_in_pieces(in_pieces, bytes, piece) == taken);
    check(raw.said() == in_pieces.said());
    ProcessingRequest message;
    const bool is_message = message.ParseFromString(bytes) && is_within_bounds(message);
    // The reader does not look at what it does not need, so it takes more than they do, but never less.
    check(taken || !is_message);
    if (!taken || !is_message) return 0;
    const std::string written = message.SerializeAsString();
    check(deliver(canonical, written));
    tell(generated, message);
    check(canonical.said() == generated.said());
    // Otherwise something is there twice: the reader lets the last count, they put both together.
    is_canonical = is_canonical && written.size() == bytes.size();
    check(!is_canonical || raw.said() == generated.said());
  }
  return 0;
}
