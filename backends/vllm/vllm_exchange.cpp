#include "backends/vllm/vllm_exchange.hpp"

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "backends/json_text/json_text.hpp"
#include "backends/vllm/decode_first_exchange.hpp"
#include "backends/vllm/finish_reason.hpp"
#include "backends/vllm/handoff_params.hpp"
#include "backends/vllm/leg_bodies.hpp"
#include "backends/vllm/leg_headers.hpp"
#include "backends/vllm/mooncake_exchange.hpp"
#include "backends/vllm/prefill_memory.hpp"
#include "backends/vllm/push_exchange.hpp"
#include "backends/vllm/request_shape.hpp"
#include "backends/vllm/transfer_params.hpp"

namespace handoff::vllm {
namespace {

constexpr std::uint32_t kReleaseDeadlineMs = 5000;

}  // namespace

std::unique_ptr<sdk::Exchange> begin_exchange(const Settings& settings, const sdk::Host& host,
                                              PrefillMemory& memory, const handoff_request& request,
                                              sdk::Turn& turn) {
  const auto run_decode_only = [&](std::string_view reason) {
    turn.decode_only(reason, DecodeHeaders(request).fields());
    return nullptr;
  };
  if (request.has_prefill == 0) return run_decode_only("no_prefill_endpoint");
  const Endpoint* endpoint = find_endpoint(sdk::view(request.path));
  if (endpoint == nullptr) return run_decode_only("unknown_path");

  const sdk::Object body(request.body);
  if (!body.is_object()) {
    turn.fail(
        {.status = 400, .code = "invalid_pd_request", .message = "The request body is not a JSON object."});
    return nullptr;
  }
  if (const auto reason = decode_only_reason(host, body, *endpoint); !reason.empty()) {
    return run_decode_only(reason);
  }
  if (settings.connector == Connector::mooncake) {
    auto exchange = std::make_unique<MooncakeExchange>(settings, host, memory, request, *endpoint);
    exchange->start(request.now_ms, turn);
    return exchange;
  }
  if (settings.connector == Connector::nixl_push && settings.push_order == PushOrder::concurrent) {
    if (const auto* address = memory.push.find(rank_key(request), request.now_ms)) {
      auto exchange = std::make_unique<PushExchange>(settings, host, memory, request, *endpoint, *address);
      exchange->start(turn);
      return exchange;
    }
  }
  if (settings.connector == Connector::shared_storage && asks_for_threshold(body, *endpoint)) {
    auto exchange = std::make_unique<DecodeFirstExchange>(settings, host, memory, request, *endpoint);
    exchange->start(turn);
    return exchange;
  }
  auto exchange = std::make_unique<VllmExchange>(settings, host, memory, request, *endpoint);
  exchange->start_prefill(turn);
  return exchange;
}

VllmExchange::VllmExchange(const Settings& settings, const sdk::Host& host, PrefillMemory& memory,
                           const handoff_request& request, const Endpoint& endpoint, std::uint32_t used_legs)
    : settings_(settings),
      host_(host),
      memory_(memory),
      request_(request),
      body_(request.body),
      endpoint_(endpoint),
      used_legs_(used_legs) {}

void VllmExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (event.kind == HANDOFF_EVENT_END) {
    on_end(event, turn);
    return;
  }
  if (event.leg != leg_ || phase_ == Phase::settled) return;
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;

  if (phase_ == Phase::decoding) {
    if (done) {  // the reply went to the client as it came
      delivery_ = Delivery::sent;
      phase_ = Phase::settled;
    } else {
      on_decode_failed(event, turn);
    }
  } else if (done && event.status >= 200 && event.status < 300) {
    on_prefill_done(event, turn);
  } else {
    phase_ = Phase::settled;
    turn.fail_with_leg(leg_);
  }
}

void VllmExchange::start_prefill(sdk::Turn& turn) {
  phase_ = Phase::prefilling;
  // A name that was used may still stand for blocks of the first try.
  if (settings_.connector == Connector::nixl_push) request_id_ = pairing_id(host_, request_);
  TransferParams named;
  std::string_view ask;
  if (is_nixl(settings_.connector)) {
    ask = kAskForHandoff;
  } else if (settings_.connector == Connector::offloading) {
    const auto rank =
        json_text::plain_integer(chosen_rank(request_, kPrefillRankHeader).value_or("0"), 65535);
    const auto port = settings_.p2p_port + static_cast<std::uint32_t>(rank < 0 ? 0 : rank);
    named = offloading_params(random_name(host_), sdk::view(request_.prefill_host), port);
    ask = named.prefill;
    params_ = named.decode;
  }
  const auto body = prefill_body(host_, body_, endpoint_, ask, {.tokens = wants_tokens()});
  // The client's own rank is about the engine it means to talk to; prefill may have fewer ranks and refuse
  // it.
  const std::array all_headers{
      sdk::header(kEngineRankHeader, chosen_rank(request_, kPrefillRankHeader).value_or("")),
      sdk::header(kRequestIdHeader, request_id_)};
  const auto headers = std::span(all_headers).first(request_id_.empty() ? 1 : 2);
  sdk::Leg leg;
  leg.id = leg_ = ++used_legs_;
  leg.role = HANDOFF_ROLE_PREFILL;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_COLLECT;
  leg.flags = HANDOFF_LEG_MAY_RESEND;
  leg.headers = headers;
  leg.body = body;
  turn.start(leg);
}

void VllmExchange::continue_after(const handoff_event& prefill_done, std::string request_id,
                                  sdk::Turn& turn) {
  request_id_ = std::move(request_id);
  leg_ = prefill_done.leg;
  on_prefill_done(prefill_done, turn);
}

/// A chat, or a completion of one text: what else there is has its tokens already, or takes none.
bool VllmExchange::wants_tokens() const {
  if (!settings_.reuse_tokens || !is_nixl(settings_.connector)) return false;
  if (endpoint_.path == kChatPath) return true;
  const auto* prompt = endpoint_.path == kCompletionsPath ? body_.find("prompt") : nullptr;
  return prompt != nullptr && prompt->kind == HANDOFF_JSON_STRING;
}

void VllmExchange::on_prefill_done(const handoff_event& event, sdk::Turn& turn) {
  if (!is_nixl(settings_.connector)) {  // the engines meet by what both were told
    const auto reply = sdk::view(event.body);
    if (reports_failure(host_, reply)) {
      refuse_handoff("it reports an error", turn);
    } else if (settings_.connector == Connector::offloading && !is_answer(host_, reply, endpoint_)) {
      refuse_handoff("the reply has no answer", turn);  // decode would wait for it
    } else {
      start_decode({}, turn);
    }
    return;
  }
  const auto handoff = read_prefill_reply(host_, sdk::view(event.body), settings_.connector);
  switch (handoff.kind) {
    case HandoffParams::Kind::missing:
      on_missing_handoff(handoff.reason, handoff.cause, turn);
      return;
    case HandoffParams::Kind::invalid:
      refuse_handoff(handoff.reason, turn);
      return;
    case HandoffParams::Kind::valid:
      params_ = handoff.params;
      learn_address(event.now_ms);
      start_decode(wants_tokens() ? read_prompt_tokens(host_, sdk::view(event.body)) : "", turn);
  }
}

void VllmExchange::refuse_handoff(std::string_view defect, sdk::Turn& turn) {
  phase_ = Phase::settled;
  host_.count("invalid_handoff");
  const std::string message = "The prefill engine's handoff can't be used: " + std::string(defect) + ".";
  turn.fail({.status = 502, .code = "invalid_prefill_handoff", .message = message, .leg = leg_});
}

/// For the requests after this one, which need not wait for prefill.
void VllmExchange::learn_address(std::uint64_t now_ms) {
  if (settings_.connector != Connector::nixl_push || settings_.push_order != PushOrder::concurrent) return;
  const bool chosen = chosen_rank(request_, kPrefillRankHeader).has_value();
  if (auto address = read_push_address(host_.json(params_), chosen))
    memory_.push.remember(rank_key(request_), std::move(*address), now_ms);
}

void VllmExchange::on_missing_handoff(std::string_view reason, std::string_view cause, sdk::Turn& turn) {
  phase_ = Phase::settled;
  missing_handoff::settle(settings_.on_missing_handoff, {.reason = reason, .cause = cause, .leg = leg_},
                          host_, DecodeHeaders(request_).fields(), turn);
}

void VllmExchange::start_decode(std::string_view tokens, sdk::Turn& turn) {
  phase_ = Phase::decoding;
  delivery_ = Delivery::unknown;
  std::string with_tokens;
  const bool is_chat = endpoint_.path == kChatPath;
  if (!tokens.empty() && is_chat) {  // a member more in the object, which decode takes out again
    with_tokens.reserve(params_.size() + tokens.size() + 24);
    with_tokens.append(params_, 0, params_.rfind('}')).append(R"(,"prompt_token_ids":)").append(tokens) +=
        '}';
  }
  const auto body = decode_body(host_, body_, endpoint_, with_tokens.empty() ? params_ : with_tokens,
                                is_chat ? std::string_view{} : tokens);
  const DecodeHeaders headers(request_, request_id_);
  sdk::Leg leg;
  leg.id = leg_ = ++used_legs_;
  leg.role = HANDOFF_ROLE_DECODE;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = HANDOFF_REPLY_RELAY;
  leg.headers = headers.fields();
  leg.body = body;
  turn.start(leg);
}

void VllmExchange::on_decode_failed(const handoff_event& event, sdk::Turn& turn) {
  delivery_ = (event.flags & HANDOFF_REQUEST_SENT) != 0 ? Delivery::sent : Delivery::unsent;
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) {  // too late to say anything else
    phase_ = Phase::settled;
    return;
  }
  // The engine closed an idle connection while we took it from the pool. Whether it read the request is
  // anyone's guess, so only an unsent handoff may go out again.
  if (!sdk::lost_in_transit(event) || tried_again_) {
    phase_ = Phase::settled;
    turn.fail_with_leg(leg_);
    return;
  }
  tried_again_ = true;
  if (delivery_ == Delivery::unsent) {
    start_decode({}, turn);
    return;
  }
  host_.count("started_over");
  params_.clear();
  start_prefill(turn);
}

void VllmExchange::on_end(const handoff_event& event, sdk::Turn& turn) {
  phase_ = Phase::settled;
  if (params_.empty() || delivery_ == Delivery::sent || !is_nixl(settings_.connector)) return;
  // While a decode leg runs, the flag of END tells; after a start-over it tells of the first leg too, and a
  // doubtful handoff is left to its lease.
  const bool maybe_sent = delivery_ == Delivery::unknown && (event.flags & HANDOFF_REQUEST_SENT) != 0;
  if (!maybe_sent) release(turn);
  params_.clear();
}

void VllmExchange::release(sdk::Turn& turn) {
  const std::string salt = '"' + random_name(host_) + '"';
  const auto body = release_body(host_, body_, endpoint_, params_, salt);
  const DecodeHeaders headers(request_, request_id_);
  sdk::Leg leg;
  leg.role = HANDOFF_ROLE_AUXILIARY;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = HANDOFF_REPLY_DISCARD;
  leg.deadline_ms = kReleaseDeadlineMs;
  leg.name = "release";
  leg.headers = headers.fields();
  leg.body = body;
  turn.background(leg);
}

}  // namespace handoff::vllm
