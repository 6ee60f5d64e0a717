#include "ext_proc_script.hpp"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace bench {
namespace {

constexpr std::string_view kBefore = R"({"model":"m","messages":[{"role":"user","content":")";
constexpr std::string_view kAfter = R"("}],"max_tokens":16,"stream":true})";
constexpr std::size_t kNumberDigits = 16;  // at the prompt's begin

std::string chat_body(std::size_t bytes) {
  constexpr std::string_view kProse =
      R"(The quick brown fox said \"well, then\" and jumped over the dog.\nAgain: )";
  const std::size_t fixed = kBefore.size() + kNumberDigits + kAfter.size();
  const std::size_t room = bytes > fixed ? bytes - fixed : 0;
  std::string prompt(kNumberDigits, '0');
  while (prompt.size() + kProse.size() <= room + kNumberDigits) prompt += kProse;
  prompt.append(room + kNumberDigits - prompt.size(), 'x');
  return std::string(kBefore) + prompt + std::string(kAfter);
}

void add_header(envoy::service::ext_proc::v3::HttpHeaders& headers, std::string_view name,
                const std::string& value) {
  auto& header = *headers.mutable_headers()->add_headers();
  header.set_key(std::string(name));
  header.set_raw_value(value);
}

WireRequest request_headers(std::size_t body_bytes) {
  const std::array<std::pair<std::string_view, std::string>, 15> kHeaders = {{
      {":method", "POST"},
      {":path", "/v1/chat/completions"},
      {":scheme", "http"},
      {":authority", "inference.example.com"},
      {"user-agent", "OpenAI/Python 1.60.0"},
      {"accept", "application/json"},
      {"accept-encoding", "gzip, deflate"},
      {"content-type", "application/json"},
      {"content-length", std::to_string(body_bytes)},
      {"authorization", "Bearer 0123456789abcdef0123456789abcdef"},
      {"x-request-id", "2f1c9f0e-5a0b-4c61-9d4f-0a8d7f9b3f11"},
      {"x-forwarded-for", "127.0.0.1"},
      {"x-forwarded-proto", "http"},
      {"x-stainless-lang", "python"},
      {"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
  }};
  WireRequest message;
  for (const auto& [name, value] : kHeaders) add_header(*message.mutable_request_headers(), name, value);
  auto& modes = *message.mutable_protocol_config();
  using envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
  modes.set_request_body_mode(ProcessingMode::FULL_DUPLEX_STREAMED);
  modes.set_response_body_mode(ProcessingMode::FULL_DUPLEX_STREAMED);
  return message;
}

std::string event(std::size_t bytes) {
  constexpr std::string_view kHead =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":")";
  constexpr std::string_view kTail = "\"}}]}\n\n";
  const std::size_t fixed = kHead.size() + kTail.size();
  return std::string(kHead) + std::string(bytes > fixed ? bytes - fixed : 1, 'y') + std::string(kTail);
}

}  // namespace

grpc::ByteBuffer bytes_of(const WireRequest& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

ExtProcScript make_ext_proc_script(std::size_t body_bytes, std::size_t piece_bytes, std::size_t chunk_bytes) {
  ExtProcScript script;
  script.body = chat_body(body_bytes);
  script.headers = bytes_of(request_headers(script.body.size()));
  for (std::size_t at = 0; at < script.body.size(); at += piece_bytes) {
    WireRequest message;
    message.mutable_request_body()->set_body(script.body.substr(at, piece_bytes));
    message.mutable_request_body()->set_end_of_stream(at + piece_bytes >= script.body.size());
    script.pieces.push_back(bytes_of(message));
    if (at == 0) script.first_piece = std::move(message);
  }
  WireRequest response_headers;
  add_header(*response_headers.mutable_response_headers(), ":status", "200");
  add_header(*response_headers.mutable_response_headers(), "content-type", "text/event-stream");
  script.response_headers = bytes_of(response_headers);
  script.chunk_bytes = event(chunk_bytes);
  WireRequest chunk;
  chunk.mutable_response_body()->set_body(script.chunk_bytes);
  script.chunk = bytes_of(chunk);
  WireResponse answer;
  answer.mutable_response_body()
      ->mutable_response()
      ->mutable_body_mutation()
      ->mutable_streamed_response()
      ->set_body(script.chunk_bytes);
  script.chunk_answer = answer.SerializeAsString();
  return script;
}

void make_distinct(ExtProcScript& script, std::uint64_t number) {
  char digits[kNumberDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  const std::string_view text(digits, kNumberDigits);
  std::copy(text.begin(), text.end(), script.body.begin() + static_cast<std::ptrdiff_t>(kBefore.size()));
  std::string& first = *script.first_piece.mutable_request_body()->mutable_body();
  std::copy(text.begin(), text.end(), first.begin() + static_cast<std::ptrdiff_t>(kBefore.size()));
  script.pieces.front() = bytes_of(script.first_piece);
}

}  // namespace bench
