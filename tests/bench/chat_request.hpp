// The request every generator sends: an OpenAI-like chat completion of an exact size.
#pragma once

#include <cstdint>
#include <string>

#include "arguments.hpp"

namespace bench {

// The flags that describe a request, for the list of known names of a tool.
#define BENCH_REQUEST_FLAGS "--port", "--path", "--body-bytes", "--filler", "--header"

struct ChatRequest {
  std::uint16_t port;
  std::string bytes;  // head and body, ready to send
};

// Reads BENCH_REQUEST_FLAGS. --filler plain: the prompt is all `x`; prose: words with the escapes of real
// text.
// --header may be given several times, as `name: value`.
ChatRequest make_chat_request(const Arguments& arguments, bool stream);

}  // namespace bench
