// One HTTP question to another mock, as an engine asks its peer's bootstrap server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "async.hpp"

namespace handoff::mock {

std::string http_request_text(const std::string& method, const std::string& target, const std::string& body);

struct HttpReply {
  int status = 0;
  std::string body;
};

// On a connection of its own; nullopt when there was no whole answer. No time-out.
Awaitable<std::optional<HttpReply>> ask_http(std::string host, std::uint16_t port, std::string request);

}  // namespace handoff::mock
