// The tokens of all choices as server-sent events, in time order.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "exchange.hpp"
#include "reply_format.hpp"

namespace handoff::mock {

// Between begin_stream() and the format's end(). Paced by --decode-us-per-token. `on_token` is told how many
// tokens of each answer are generated, before they are sent.
Awaitable<void> stream_tokens(Exchange& exchange, const std::vector<Completion>& answers, ReplyFormat& format,
                              const std::function<void(std::size_t)>& on_token);

}  // namespace handoff::mock
