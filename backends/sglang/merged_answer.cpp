// The answers of SglangExchange that hold prefill's log-probabilities: decode's reply, with a list made
// longer.
#include <array>

#include "backends/sglang/sglang_exchange.hpp"

namespace handoff::sglang {

void SglangExchange::pass_on(std::string_view bytes, bool last, sdk::Turn& turn) {
  const std::array pieces{handoff_piece{bytes.data() == nullptr ? "" : bytes.data(), 0, bytes.size()}};
  turn.write(pieces, last);
}

void SglangExchange::keep_event(std::string_view event, sdk::Turn& turn) {
  if (phase_ == Phase::paired) {
    waiting_.emplace_back(event);
    return;
  }
  const auto data = event_data(event);
  if (!data || data->empty() || data->front() != '{') {
    pass_on(event, false, turn);
    return;
  }
  const auto at = static_cast<std::size_t>(data->data() - event.data());
  std::string out(event.substr(0, at));
  out += logprobs_.merged_event(*data, shape_);
  out += event.substr(at + data->size());
  pass_on(out, false, turn);
}

void SglangExchange::begin_merged(sdk::Turn& turn) {
  phase_ = Phase::answering;
  const std::array headers{sdk::header("content-type", content_type_)};
  turn.respond(decode_status_, headers, {}, /*more=*/true);
  for (const auto& event : waiting_) keep_event(event, turn);
  waiting_.clear();
  if (decode_done_) finish_merged(turn);
}

void SglangExchange::finish_merged(sdk::Turn& turn) {
  if (decode_is_stream_) {
    pass_on(events_.rest(), true, turn);
  } else {
    pass_on(logprobs_.merged_reply(decode_reply_, shape_), true, turn);
  }
  settle(turn);
}

void SglangExchange::answer_merged(sdk::Turn& turn) {
  const auto text = logprobs_.merged_reply(decode_reply_, shape_);
  const std::array headers{sdk::header("content-type", content_type_)};
  const std::array body{handoff_piece{text.data(), 0, text.size()}};
  turn.respond(decode_status_, headers, body);
  settle(turn);
}

}  // namespace handoff::sglang
