// The tokens of all choices as server-sent events, in time order.
#pragma once

#include <vector>

#include "exchange.hpp"
#include "reply_format.hpp"

namespace handoff::mock {

// Between begin_stream() and the format's end(). Paced by --decode-us-per-token.
Awaitable<void> stream_tokens(Exchange& exchange, const std::vector<Completion>& answers,
                              ReplyFormat& format);

}  // namespace handoff::mock
