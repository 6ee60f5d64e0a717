#include "backends/vllm/decode_first_exchange.hpp"

#include "backends/json_text/json_text.hpp"
#include "backends/vllm/finish_reason.hpp"
#include "backends/vllm/leg_headers.hpp"

namespace handoff::vllm {
namespace {

constexpr std::uint32_t kTry = 1;
constexpr std::size_t kLargestBegin = std::size_t{64} * 1024;
// The reason stands in the first event, or in the one behind that which only names the role.
constexpr int kDecisiveEvents = 2;

}  // namespace

bool asks_for_threshold(const sdk::Object& body, const Endpoint& endpoint) {
  if (endpoint.path != kChatPath && endpoint.path != kCompletionsPath) return false;
  const auto* member = body.find("cache_hit_threshold");
  return member != nullptr && member->kind == HANDOFF_JSON_NUMBER;
}

DecodeFirstExchange::DecodeFirstExchange(const Settings& settings, const sdk::Host& host,
                                         PrefillMemory& memory, const handoff_request& request,
                                         const Endpoint& endpoint)
    : settings_(settings),
      host_(host),
      memory_(memory),
      request_(request),
      body_(request.body),
      endpoint_(endpoint) {}

void DecodeFirstExchange::start(sdk::Turn& turn) {
  const auto* stream = body_.find("stream");
  streamed_ = stream != nullptr && json_text::reads_as_true(body_.raw(*stream));
  const DecodeHeaders headers(request_);
  sdk::Leg leg;
  leg.id = kTry;
  leg.role = HANDOFF_ROLE_DECODE;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = streamed_ ? HANDOFF_REPLY_HOLD : HANDOFF_REPLY_COLLECT;
  leg.flags = HANDOFF_LEG_CLIENT_BODY | HANDOFF_LEG_MAY_RESEND;  // nothing is handed over
  if (streamed_) leg.flags |= HANDOFF_LEG_WANT_HEAD | HANDOFF_LEG_WANT_BODY;
  leg.headers = headers.fields();
  turn.start(leg);
}

void DecodeFirstExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (pair_ != nullptr) {
    pair_->on_event(event, turn);
    return;
  }
  if (event.leg != kTry) return;
  if (settled_ && event.kind != HANDOFF_EVENT_LEG_FAILED) return;  // a relayed leg may still break
  switch (event.kind) {
    case HANDOFF_EVENT_LEG_HEAD:
      if (!sdk::is_success(event.status)) take_reply(turn);
      return;
    case HANDOFF_EVENT_LEG_BODY:
      on_piece(sdk::view(event.body), turn);
      return;
    case HANDOFF_EVENT_LEG_DONE:
      on_done(event, turn);
      return;
    case HANDOFF_EVENT_LEG_FAILED:
      settled_ = true;
      if ((event.flags & HANDOFF_CLIENT_STARTED) == 0) turn.fail_with_leg(kTry);
      return;
    default:
      return;
  }
}

void DecodeFirstExchange::on_done(const handoff_event& event, sdk::Turn& turn) {
  const bool gave_up = !streamed_ && finish_reason(host_, sdk::view(event.body)) == "cache_threshold";
  if (gave_up) {
    run_prefill(/*leg_runs=*/false, turn);
  } else {
    take_reply(turn);
  }
}

void DecodeFirstExchange::on_piece(std::string_view bytes, sdk::Turn& turn) {
  begin_ += bytes.substr(0, kLargestBegin);
  int events = 0;
  std::size_t at = 0;
  while (events < kDecisiveEvents) {
    const auto data = begin_.find("data:", at);
    const auto end = data == std::string::npos ? data : begin_.find('\n', data);
    if (end == std::string::npos) break;
    ++events;
    if (finish_reason(host_, std::string_view(begin_).substr(data + 5, end - data - 5)) ==
        "cache_threshold") {
      run_prefill(/*leg_runs=*/true, turn);
      return;
    }
    at = end;
  }
  if (events == kDecisiveEvents || begin_.size() >= kLargestBegin) take_reply(turn);
}

void DecodeFirstExchange::take_reply(sdk::Turn& turn) {
  settled_ = true;
  host_.count("cached_enough");
  turn.relay(kTry);
}

void DecodeFirstExchange::run_prefill(bool leg_runs, sdk::Turn& turn) {
  host_.count("cached_too_little");
  if (leg_runs) turn.cancel(kTry);
  begin_ = {};
  pair_ = std::make_unique<VllmExchange>(settings_, host_, memory_, request_, endpoint_, /*used_legs=*/kTry);
  pair_->start_prefill(turn);
}

}  // namespace handoff::vllm
