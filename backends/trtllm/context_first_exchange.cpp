#include "backends/trtllm/context_first_exchange.hpp"

#include <string>
#include <utility>

#include "backends/trtllm/disagg_id.hpp"
#include "backends/trtllm/finished_answer.hpp"
#include "backends/trtllm/leg_bodies.hpp"

namespace handoff::trtllm {

ContextFirstExchange::ContextFirstExchange(const Settings& settings, const sdk::Host& host,
                                           const handoff_request& request, Api api)
    : settings_(settings), host_(host), body_(request.body), api_(api) {}

void ContextFirstExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (event.kind == HANDOFF_EVENT_END) {
    on_end(event);
    return;
  }
  if (event.leg != leg_ || phase_ == Phase::settled) return;
  if (event.kind == HANDOFF_EVENT_LEG_HEAD && phase_ == Phase::generation && !sdk::is_success(event.status))
    note_refused();
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;
  if (phase_ == Phase::context) {
    if (done) {
      on_context_done(event, turn);
    } else {
      on_context_failed(event, turn);
    }
  } else if (done) {
    phase_ = Phase::settled;  // the reply went to the client as it came
  } else {
    on_generation_failed(event, turn);
  }
}

void ContextFirstExchange::start_context(sdk::Turn& turn) {
  phase_ = Phase::context;
  const std::string params = context_params(new_disagg_id(host_), Schedule::context_first);
  const auto body = context_body(body_, params);
  const auto headers = leg_headers();
  sdk::Leg leg;
  leg.id = ++leg_;
  leg.role = HANDOFF_ROLE_PREFILL;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_COLLECT;
  leg.headers = headers;
  leg.body = body;
  turn.start(leg);
}

void ContextFirstExchange::on_context_done(const handoff_event& event, sdk::Turn& turn) {
  if (!sdk::is_success(event.status)) {
    phase_ = Phase::settled;
    turn.fail_with_leg(leg_);
    return;
  }
  const auto reply = read_context_reply(host_, sdk::view(event.body), api_);
  switch (reply.kind) {
    case ContextReply::Kind::finished:
      phase_ = Phase::settled;
      answer_from_context(host_, reply, body_, api_, turn);
      return;
    case ContextReply::Kind::handoff:
      start_generation(reply, turn);
      return;
    case ContextReply::Kind::missing:
      on_missing_handoff(turn);
      return;
    case ContextReply::Kind::invalid:
      refuse_handoff(reply.defect, turn);
  }
}

void ContextFirstExchange::on_context_failed(const handoff_event& event, sdk::Turn& turn) {
  if (sdk::lost_in_transit(event) && !tried_again_) {
    start_over(turn);
    return;
  }
  phase_ = Phase::settled;
  turn.fail_with_leg(leg_);
}

void ContextFirstExchange::on_missing_handoff(sdk::Turn& turn) {
  phase_ = Phase::settled;
  missing_handoff::settle(
      settings_.on_missing_handoff,
      {.reason = "missing_handoff",
       .cause = "The context engine answers without disaggregated_params. It may run without a "
                "cache_transceiver_config, or be no context server.",
       .leg = leg_},
      host_, leg_headers(), turn);
}

void ContextFirstExchange::refuse_handoff(std::string_view defect, sdk::Turn& turn) {
  phase_ = Phase::settled;
  host_.count("invalid_handoff");
  const std::string message = "The context engine's handoff can't be used: " + std::string(defect) + ".";
  turn.fail({.status = 502, .code = "invalid_prefill_handoff", .message = message, .leg = leg_});
}

void ContextFirstExchange::start_generation(const ContextReply& reply, sdk::Turn& turn) {
  auto params = handed_over_params(reply);
  std::string signature;
  if (!settings_.auth_key.empty() && params.protected_fields.any()) {
    const auto payload = canonical_payload(params.protected_fields);
    if (!payload) {
      refuse_handoff("encoded_opaque_state or ctx_info_endpoint is not a string", turn);
      return;
    }
    signature = signature_of(settings_.auth_key, *payload);
  }
  std::string_view ids_field = reply.ids_are_base64 ? "prompt_token_ids_b64" : "prompt_token_ids";
  std::string_view prompt_ids = reply.prompt_ids;
  std::string decoded;
  if (api_ == Api::completions) {
    ids_field = "prompt";
    if (reply.ids_are_base64) {  // this path takes a list only
      auto list = ids_of_base64(prompt_ids);
      if (!list) {
        refuse_handoff("prompt_token_ids_b64 is not base64 of 32-bit integers", turn);
        return;
      }
      decoded = std::move(*list);
      prompt_ids = decoded;
    }
  }
  const auto body = generation_body(body_, std::move(params.pieces), ids_field, prompt_ids);
  const auto headers = leg_headers(signature);
  phase_ = Phase::generation;
  sdk::Leg leg;
  leg.id = ++leg_;
  leg.role = HANDOFF_ROLE_DECODE;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = HANDOFF_REPLY_RELAY;
  leg.flags = HANDOFF_LEG_WANT_HEAD;
  leg.linger_ms = kLingerMs;
  leg.headers = headers;
  leg.body = body;
  turn.start(leg);
}

void ContextFirstExchange::on_generation_failed(const handoff_event& event, sdk::Turn& turn) {
  phase_ = Phase::settled;
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) return;  // too late to say anything else
  if ((event.flags & HANDOFF_REQUEST_SENT) == 0) note_unreleased();
  if (sdk::lost_in_transit(event) && !tried_again_) {
    start_over(turn);
    return;
  }
  turn.fail_with_leg(leg_);
}

void ContextFirstExchange::on_end(const handoff_event& event) {
  const bool waiting = phase_ == Phase::generation && (event.flags & HANDOFF_REPLY_STARTED) == 0;
  phase_ = Phase::settled;
  if (!waiting) return;
  if (event.outcome == HANDOFF_OUTCOME_CLIENT_GONE) {
    host_.count("generation_lingers");
  } else if ((event.flags & HANDOFF_REQUEST_SENT) == 0) {
    note_unreleased();
  }
}

/// The first id may be known to both engines by now, so everything is made anew.
void ContextFirstExchange::start_over(sdk::Turn& turn) {
  tried_again_ = true;
  host_.count("started_over");
  start_context(turn);
}

/// Its answer is the client's. Nothing tells context, unlike with vLLM.
void ContextFirstExchange::note_refused() {
  host_.count("generation_refused");
  host_.warn("generation_refused",
             "The generation engine refused a handoff. The context engine keeps its blocks until "
             "kv_transfer_timeout_ms.");
}

void ContextFirstExchange::note_unreleased() {
  host_.count("unreleased");
  host_.warn("unreleased",
             "A handoff did not reach the generation engine. The context engine keeps its blocks until "
             "kv_transfer_timeout_ms.");
}

}  // namespace handoff::trtllm
