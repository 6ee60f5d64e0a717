#include "token_stream.hpp"

#include <algorithm>
#include <utility>

namespace handoff::mock {

Awaitable<void> stream_tokens(Exchange& exchange, const std::vector<Completion>& answers, ReplyFormat& format,
                              const std::function<void(std::size_t)>& on_token) {
  const auto step = exchange.services.config.decode_per_token;
  std::size_t steps = 0;
  for (const Completion& answer : answers) steps = std::max(steps, answer.tokens.size());
  for (std::size_t position = 0; position < steps; ++position) {
    co_await sleep_for(step);
    std::string events;
    for (const Completion& answer : answers) {
      if (position < answer.tokens.size()) events += format.token(answer, position);
      if (position + 1 == answer.tokens.size()) events += format.choice_end(answer);
    }
    if (on_token) on_token(position + 1);
    co_await exchange.writer.piece(std::move(events));
  }
  std::string events;
  for (const Completion& answer : answers) {
    if (answer.tokens.empty()) events += format.choice_end(answer);
  }
  co_await exchange.writer.piece(std::move(events));
}

}  // namespace handoff::mock
