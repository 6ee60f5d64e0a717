#include "chat_request.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace bench {
namespace {

std::string chat_body(std::size_t bytes, bool stream, bool prose) {
  constexpr std::string_view kBefore = R"({"model":"m","messages":[{"role":"user","content":")";
  const std::string after = stream ? R"("}],"max_tokens":16,"stream":true})" : R"("}],"max_tokens":16})";
  constexpr std::string_view kProse =
      R"(The quick brown fox said \"well, then\" and jumped over the dog.\nAgain: )";
  const std::size_t fixed = kBefore.size() + after.size();
  const std::size_t room = bytes > fixed ? bytes - fixed : 1;
  std::string prompt;
  while (prose && prompt.size() + kProse.size() <= room) prompt += kProse;
  prompt.append(room - prompt.size(), 'x');
  return std::string(kBefore) + prompt + after;
}

}  // namespace

ChatRequest make_chat_request(const Arguments& arguments, bool stream) {
  const auto port = static_cast<std::uint16_t>(arguments.number("--port", 0, 1, 65535));
  if (port == 0) {
    std::fprintf(stderr, "error: --port: needed\n");
    std::exit(2);
  }
  const std::string filler = arguments.text("--filler", "plain");
  if (filler != "plain" && filler != "prose") {
    std::fprintf(stderr, "error: --filler: must be plain or prose\n");
    std::exit(2);
  }
  const std::string body =
      chat_body(arguments.number("--body-bytes", 1024, 1, 64U << 20U), stream, filler == "prose");
  std::string bytes = "POST " + arguments.text("--path", "/v1/chat/completions") + " HTTP/1.1\r\n";
  bytes += "Host: 127.0.0.1:" + std::to_string(port) + "\r\n";
  bytes += "User-Agent: handoff-bench\r\nAccept: */*\r\nContent-Type: application/json\r\n";
  bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  for (const std::string& header : arguments.all("--header")) bytes += header + "\r\n";
  bytes += "\r\n" + body;
  return {port, std::move(bytes)};
}

}  // namespace bench
