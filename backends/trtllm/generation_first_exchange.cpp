#include "backends/trtllm/generation_first_exchange.hpp"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "backends/trtllm/context_reply.hpp"
#include "backends/trtllm/disagg_id.hpp"
#include "backends/trtllm/finished_answer.hpp"
#include "backends/trtllm/leg_bodies.hpp"

namespace handoff::trtllm {
namespace {

constexpr std::uint64_t kInfoLimit = 1024 * 1024;

bool is_error(const sdk::Host& host, std::string_view event) {
  const auto object = host.json(event);
  const auto* error = object.find("error");
  return error != nullptr && error->kind != HANDOFF_JSON_NULL;
}

}  // namespace

GenerationFirstExchange::GenerationFirstExchange(const Settings& settings, const sdk::Host& host,
                                                 ContextInfoMemory& memory, const handoff_request& request)
    : settings_(settings),
      host_(host),
      memory_(memory),
      request_(request),
      body_(request.body),
      context_endpoint_(endpoints::endpoint_key(request)) {}

void GenerationFirstExchange::start(std::uint64_t now_ms, sdk::Turn& turn) {
  if (const auto* info = memory_.find(context_endpoint_, now_ms)) {
    from_memory_ = true;
    start_generation(*info, turn);
  } else {
    phase_ = Phase::asking;
    ask_context(turn);
  }
}

void GenerationFirstExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (event.kind == HANDOFF_EVENT_END) {
    on_end(event, turn);
    return;
  }
  if (phase_ == Phase::settled) return;
  if (phase_ == Phase::asking) {
    if (event.leg == info_leg_) on_info(event, turn);
  } else if (phase_ == Phase::relaying) {
    if (event.leg == generation_leg_ && event.kind == HANDOFF_EVENT_LEG_FAILED) on_failed(event, turn);
  } else if (event.leg == generation_leg_) {
    on_generation(event, turn);
  } else if (event.leg == context_leg_id_) {
    on_context(event, turn);
  } else if (event.leg == info_leg_) {
    on_checked(event, turn);
  }
}

// ------------------------------------------------------------------------------------------- /server_info

void GenerationFirstExchange::ask_context(sdk::Turn& turn) {
  std::vector<handoff_header> headers;
  if (const auto key = sdk::find_header(request_.headers, request_.header_count, "authorization")) {
    headers.push_back(sdk::header("authorization", *key));
  }
  sdk::Leg leg;
  leg.id = info_leg_ = next_leg_++;
  leg.role = HANDOFF_ROLE_AUXILIARY;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_COLLECT;
  leg.flags = HANDOFF_LEG_MAY_RESEND | HANDOFF_LEG_NO_CLIENT_HEADERS;
  leg.reply_limit = kInfoLimit;
  leg.method = "GET";
  leg.path = "/server_info";
  leg.name = "server_info";
  leg.headers = headers;
  turn.start(leg);
}

void GenerationFirstExchange::on_info(const handoff_event& event, sdk::Turn& turn) {
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;
  const bool is_refused = done && (event.status == 401 || event.status == 403 || event.status >= 500);
  if (!done || is_refused) {
    phase_ = Phase::settled;
    turn.fail_with_leg(info_leg_);
    return;
  }
  auto info = sdk::is_success(event.status) ? read_server_info(host_, sdk::view(event.body)) : std::nullopt;
  if (!info) {
    refuse(turn);
    return;
  }
  memory_.remember(context_endpoint_, *info, event.now_ms);
  from_memory_ = false;
  start_generation(*info, turn);
}

/// A context engine whose connection had to be made anew may be another one than the one that is remembered:
/// it is asked again, beside the pair, and what is known of it is good for no other request meanwhile.
void GenerationFirstExchange::on_context_connected(const handoff_event& event, sdk::Turn& turn) {
  if (!from_memory_ || info_leg_ != 0 || (event.flags & HANDOFF_REUSED) != 0) return;
  memory_.forget(context_endpoint_);
  checking_ = true;
  ask_context(turn);
}

/// The answer to that. One that says what was said before changes nothing; nor does none, which is the pair's
/// own failure if it is one.
void GenerationFirstExchange::on_checked(const handoff_event& event, sdk::Turn& turn) {
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!checking_ || (!done && event.kind != HANDOFF_EVENT_LEG_FAILED)) return;
  checking_ = false;
  auto info =
      done && sdk::is_success(event.status) ? read_server_info(host_, sdk::view(event.body)) : std::nullopt;
  const bool is_same = info && *info == info_;
  if (is_same) memory_.remember(context_endpoint_, std::move(*info), event.now_ms);
  if (is_same || !done) {
    if (const auto reply = std::exchange(unchecked_reply_, std::nullopt))
      on_context_reply(200, *reply, event.now_ms, turn);
    return;
  }
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) return;
  // Generation waits at an address where nobody is any more, and context for a generation that does not come.
  host_.count("engine_changed");
  if (!generation_done_) turn.cancel(generation_leg_);
  cancel_context(turn);
  if (!info) {
    refuse(turn);
    return;
  }
  memory_.remember(context_endpoint_, *info, event.now_ms);
  from_memory_ = false;  // so it is not checked again, and the second try is left for what is lost
  start_generation(*info, turn);
}

void GenerationFirstExchange::refuse(sdk::Turn& turn) {
  phase_ = Phase::settled;
  host_.count("no_context_info");
  host_.warn("no_context_info",
             "The context engine's /server_info has no usable disaggregated_params.ctx_info_endpoint. It "
             "does not offer generation-first; set DYN_SIDECAR_TRTLLM_SCHEDULE to context-first.");
  turn.fail({.status = 502,
             .code = "invalid_prefill_handoff",
             .message = "The context engine's /server_info does not say where generation finds it "
                        "(disaggregated_params.ctx_info_endpoint).",
             .leg = info_leg_});
}

// ----------------------------------------------------------------------------------------------- both legs

void GenerationFirstExchange::start_generation(const ContextInfo& info, sdk::Turn& turn) {
  info_ = info;
  const sdk::Object announced = host_.json(info_.params);
  disagg_id_ = new_disagg_id(host_);
  auto params = announced_params(announced, info_.endpoint, disagg_id_);
  std::string signature;
  if (!settings_.auth_key.empty()) {
    const auto payload = canonical_payload(params.protected_fields);
    if (!payload) {
      refuse(turn);
      return;
    }
    signature = signature_of(settings_.auth_key, *payload);
  }
  phase_ = Phase::pairing;
  context_leg_id_ = 0;
  generation_done_ = generation_spoke_ = checking_ = false;
  unchecked_reply_.reset();
  first_event_ = {};
  const auto body = generation_body(body_, std::move(params.pieces), {}, {});
  const auto headers = leg_headers(signature);
  sdk::Leg leg;
  leg.id = generation_leg_ = next_leg_++;
  leg.role = HANDOFF_ROLE_DECODE;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = HANDOFF_REPLY_HOLD;
  leg.flags = HANDOFF_LEG_WANT_SENT | HANDOFF_LEG_WANT_HEAD | HANDOFF_LEG_WANT_BODY;
  leg.linger_ms = kLingerMs;
  leg.headers = headers;
  leg.body = body;
  turn.start(leg);
}

void GenerationFirstExchange::start_context(sdk::Turn& turn) {
  const std::string params = context_params(disagg_id_, Schedule::generation_first);
  const auto body = context_body(body_, params);
  const auto headers = leg_headers();
  sdk::Leg leg;
  leg.role = HANDOFF_ROLE_PREFILL;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_COLLECT;
  leg.linger_ms = kLingerMs;  // it answers when generation has its blocks
  if (from_memory_) leg.flags = HANDOFF_LEG_WANT_CONNECTED;
  leg.headers = headers;
  leg.body = body;
  leg.id = context_leg_id_ = next_leg_++;
  turn.start(leg);
}

void GenerationFirstExchange::on_generation(const handoff_event& event, sdk::Turn& turn) {
  switch (event.kind) {
    case HANDOFF_EVENT_LEG_SENT:
      if (context_leg_id_ == 0) start_context(turn);
      return;
    case HANDOFF_EVENT_LEG_HEAD:
      if (sdk::is_success(event.status)) return;
      host_.count("generation_refused");
      // A 4xx is about the request; anything else may be because context was not where it was said to be.
      if (event.status / 100 != 4) memory_.forget(context_endpoint_);
      give_generations_answer(turn);
      return;
    case HANDOFF_EVENT_LEG_BODY:
      generation_spoke_ = true;
      if (first_event_.take(sdk::view(event.body)) && is_error(host_, first_event_.data())) {
        memory_.forget(context_endpoint_);
        give_generations_answer(turn);
      }
      return;
    case HANDOFF_EVENT_LEG_DONE:
      generation_done_ = generation_spoke_ = true;
      // A complete answer without a context request is not what the protocol has, but it is an answer.
      if (context_leg_id_ == 0) give_generations_answer(turn);
      return;
    case HANDOFF_EVENT_LEG_FAILED:
      on_failed(event, turn);
      return;
    default:
      return;
  }
}

/// Generation has failed in its own words. Context would wait for it.
void GenerationFirstExchange::give_generations_answer(sdk::Turn& turn) {
  cancel_context(turn);
  relay_generation(turn);
}

void GenerationFirstExchange::relay_generation(sdk::Turn& turn) {
  phase_ = generation_done_ ? Phase::settled : Phase::relaying;
  turn.relay(generation_leg_);
}

void GenerationFirstExchange::on_context(const handoff_event& event, sdk::Turn& turn) {
  if (event.kind == HANDOFF_EVENT_LEG_CONNECTED) {
    on_context_connected(event, turn);
  } else if (event.kind == HANDOFF_EVENT_LEG_FAILED) {
    on_failed(event, turn);
  } else if (event.kind == HANDOFF_EVENT_LEG_DONE) {
    const auto text = sdk::view(event.body);
    if (checking_ && sdk::is_success(event.status)) {
      unchecked_reply_ = std::string(text);  // any engine answers
    } else {
      on_context_reply(event.status, text, event.now_ms, turn);
    }
  }
}

void GenerationFirstExchange::cancel_context(sdk::Turn& turn) {
  if (context_leg_id_ != 0 && !unchecked_reply_) turn.cancel(context_leg_id_);
}

void GenerationFirstExchange::on_context_reply(std::uint32_t status, std::string_view text,
                                               std::uint64_t now_ms, sdk::Turn& turn) {
  const auto reply = read_completion(host_, text);
  const bool success = sdk::is_success(status);
  if (success && reply.kind != ContextReply::Kind::invalid) {
    memory_.confirm(context_endpoint_, info_, now_ms);  // it is the engine that was asked
    if (reply.kind == ContextReply::Kind::finished && !generation_spoke_) {
      answer_finished(reply, turn);
    } else {
      relay_generation(turn);
    }
    return;
  }
  phase_ = Phase::settled;
  memory_.forget(context_endpoint_);
  // It has refused: generation would wait for blocks that nobody sends. A reply that can't be read may have
  // sent them: then generation is left to linger.
  if ((!success || is_error(host_, text)) && !generation_done_) turn.cancel(generation_leg_);
  if (!success) {
    turn.fail_with_leg(context_leg_id_);
    return;
  }
  host_.count("invalid_handoff");
  const std::string message = "The context engine's reply can't be used: " + std::string(reply.defect) + ".";
  turn.fail({.status = 502, .code = "invalid_prefill_handoff", .message = message, .leg = context_leg_id_});
}

/// The request ended with its first token: no blocks are on their way, and generation waits for them.
void GenerationFirstExchange::answer_finished(const ContextReply& reply, sdk::Turn& turn) {
  phase_ = Phase::settled;
  turn.cancel(generation_leg_);
  answer_from_context(host_, reply, body_, api_of(sdk::view(request_.path)), turn);
}

/// Also after relay(), which lets generation answer as soon as context is done: it may not have said a word
/// yet.
void GenerationFirstExchange::on_failed(const handoff_event& event, sdk::Turn& turn) {
  const bool context_is_over = phase_ == Phase::relaying;
  phase_ = Phase::settled;
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) return;
  memory_.forget(context_endpoint_);
  const bool is_context = event.leg == context_leg_id_;
  // A context that has the request and breaks off may be sending its blocks: generation is left to linger.
  const bool never_sent = (event.flags & HANDOFF_REQUEST_SENT) == 0;
  if (is_context && never_sent && !generation_done_) turn.cancel(generation_leg_);
  if (!is_context && !context_is_over) cancel_context(turn);
  if (sdk::lost_in_transit(event) && !tried_again_) {
    tried_again_ = true;
    host_.count("started_over");
    phase_ = Phase::asking;
    ask_context(turn);
    return;
  }
  turn.fail_with_leg(event.leg);
}

void GenerationFirstExchange::on_end(const handoff_event& event, sdk::Turn& turn) {
  const bool pairing = phase_ == Phase::pairing;
  phase_ = Phase::settled;
  if (!pairing || event.outcome != HANDOFF_OUTCOME_CLIENT_GONE) return;
  if ((event.flags & HANDOFF_REQUEST_SENT) == 0) return;  // neither engine has heard of the request
  host_.count("generation_lingers");
  if (context_leg_id_ != 0) return;
  // Generation has the request and waits for its blocks: only context can end that.
  const std::string params = context_params(disagg_id_, Schedule::generation_first);
  const auto body = context_body(body_, params);
  const auto headers = leg_headers();
  sdk::Leg leg;
  leg.role = HANDOFF_ROLE_AUXILIARY;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_DISCARD;
  leg.deadline_ms = kLingerMs;
  leg.name = "finish_context";
  leg.headers = headers;
  leg.body = body;
  turn.background(leg);
}

}  // namespace handoff::trtllm
