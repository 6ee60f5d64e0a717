#include "backends/vllm/push_exchange.hpp"

#include <array>

#include "backends/vllm/handoff_params.hpp"
#include "backends/vllm/leg_bodies.hpp"
#include "backends/vllm/leg_headers.hpp"
#include "backends/vllm/transfer_params.hpp"

namespace handoff::vllm {

PushExchange::PushExchange(const Settings& settings, const sdk::Host& host, PrefillMemory& memory,
                           const handoff_request& request, const Endpoint& endpoint,
                           const PushAddress& address)
    : PairExchange(settings, host, request, endpoint),
      memory_(memory),
      address_(address),
      request_id_(pairing_id(host, request)) {}

void PushExchange::start(sdk::Turn& turn) {
  const auto rank = chosen_rank(request_, kPrefillRankHeader).value_or("");
  const std::array prefill_headers{sdk::header(kEngineRankHeader, rank),
                                   sdk::header(kRequestIdHeader, request_id_)};
  const DecodeHeaders decode_headers(request_, request_id_);
  const auto params = push_params(address_, request_id_);
  start_pair({kAskForHandoff, prefill_headers}, {params, decode_headers.fields()}, /*from_memory=*/true,
             turn);
}

void PushExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (rest_ != nullptr) {
    rest_->on_event(event, turn);
  } else {
    PairExchange::on_event(event, turn);
  }
}

void PushExchange::forget() {
  memory_.push.forget(rank_key(request_));
}

void PushExchange::begin_anew(sdk::Turn& turn) {
  rest_ = std::make_unique<VllmExchange>(settings_, host_, memory_, request_, endpoint_, next_leg_ - 1);
  rest_->start_prefill(turn);
}

void PushExchange::on_prefill_reply(const handoff_event& event, sdk::Turn& turn) {
  const auto handoff = read_prefill_reply(host_, sdk::view(event.body), settings_.connector);
  const auto params = host_.json(handoff.params);
  const auto chosen = chosen_rank(request_, kPrefillRankHeader).has_value();
  const auto named =
      handoff.kind == HandoffParams::Kind::valid ? read_push_address(params, chosen) : std::nullopt;
  if (named && *named == address_) {
    memory_.push.remember(rank_key(request_), *named, event.now_ms);
    prefill_is_done(turn);
    return;
  }
  // Nobody will write to the blocks that decode has registered, or not from there.
  forget();
  host_.count("push_address_changed");
  give_up_decode(turn);
  phase_ = Phase::settled;
  rest_ = std::make_unique<VllmExchange>(settings_, host_, memory_, request_, endpoint_, next_leg_ - 1);
  rest_->continue_after(event, request_id_, turn);
}

}  // namespace handoff::vllm
