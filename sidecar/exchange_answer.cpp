// What a DisaggregatedExchange tells its client when no reply is relayed as it came.
#include "sidecar/disaggregated_exchange_state.hpp"
#include "sidecar/engine_error.hpp"
#include "sidecar/pass_through.hpp"

namespace handoff::sidecar {

Answer DisaggregatedExchange::made_error(SidecarError error, std::string_view message, unsigned status) {
  const auto& row = row_of(error);
  request_->record.error_code = row.code;
  return error_answer(error, status == 0 ? row.status : status, message);
}

Awaitable<> DisaggregatedExchange::answer(const Answer& answer) {
  settled_ = true;
  give_up_all(GiveUp::may_linger);
  if (relay_.started()) {  // too late for words
    broken_ = true;
    co_return;
  }
  const auto end = co_await relay_.send(answer);
  note_relay_end(end);
}

void DisaggregatedExchange::note_relay_end(RelayEnd end) {
  settled_ = true;
  if (end == RelayEnd::engine_failed) broken_ = true;
}

Answer DisaggregatedExchange::failed_leg_answer(const Leg& leg) {
  if (leg.role == HANDOFF_ROLE_DECODE) {
    const bool has_head = leg.upstream && leg.upstream->head().status != 0;
    if (leg.failure == LegFailure::too_large && has_head)
      return made_error(SidecarError::decode_upstream_error, "The decode engine's reply is too large.");
    return decode_failure_answer(leg.failure, request_->record);
  }
  if (leg.failure == LegFailure::overloaded)
    return made_error(SidecarError::sidecar_overloaded, row_of(SidecarError::sidecar_overloaded).message);
  const bool auxiliary = leg.role == HANDOFF_ROLE_AUXILIARY;
  const std::string engine = leg.asks_prefill() ? "The prefill engine" : "The decode engine";
  const auto made = [&](SidecarError of_prefill, SidecarError of_auxiliary, std::string_view what) {
    return made_error(auxiliary ? of_auxiliary : of_prefill, engine + std::string(what));
  };
  using enum SidecarError;
  switch (leg.failure) {
    case LegFailure::name:
      return made(prefill_upstream_unavailable, auxiliary_upstream_error, "'s host name has no address.");
    case LegFailure::connect:
      return made(prefill_upstream_unavailable, auxiliary_upstream_error, " could not be connected to.");
    case LegFailure::connect_timeout:
      return made(prefill_upstream_timeout, auxiliary_upstream_timeout, " could not be reached in time.");
    case LegFailure::read_timeout:
      return made(prefill_upstream_timeout, auxiliary_upstream_timeout, " did not answer in time.");
    case LegFailure::deadline:
      if (auxiliary) return made_error(auxiliary_upstream_timeout, engine + " did not answer in time.");
      return made_error(prefill_deadline_exceeded, "The prefill engine took too long.");
    case LegFailure::too_large:
      return made(prefill_response_too_large, auxiliary_upstream_error, "'s reply is too large.");
    case LegFailure::malformed:
      return made(prefill_upstream_error, auxiliary_upstream_error, "'s reply is not valid HTTP.");
    default:
      return made(prefill_upstream_unavailable, auxiliary_upstream_error,
                  " closed the connection without a complete answer.");
  }
}

Awaitable<> DisaggregatedExchange::settle_with_leg(Leg& leg) {
  const bool is_prefill = leg.role == HANDOFF_ROLE_PREFILL;
  const auto status = leg.failure == LegFailure::none ? leg.upstream->head().status : 0;
  // A reply that was passed to the backend in pieces, or dropped, can't be relayed under its own length.
  const bool has_words = status != 0 && leg.collected.size() == leg.upstream->body_bytes();
  if (is_prefill && has_words) request_->record.prefill_error = engine_error_word(leg.collected);
  if (status >= 400 && status < 500 && has_words) {  // about the client's own request: its words, not ours
    settled_ = true;
    give_up_all(GiveUp::may_linger);
    const auto end = co_await relay_.relay(*leg.upstream, leg.collected, true);
    note_relay_end(end);
    co_return;
  }
  if (leg.asks_prefill() && services_.plan.config.on_prefill_failure == OnPrefillFailure::decode_only) {
    request_->record.reason = "prefill_failed";
    wants_decode_only_ = true;
    settled_ = true;
    co_return;
  }
  if (status == 0) {
    const auto error = failed_leg_answer(leg);
    co_await answer(error);
    co_return;
  }
  if (leg.role == HANDOFF_ROLE_DECODE && has_words) {
    settled_ = true;
    const auto end = co_await relay_.relay(*leg.upstream, leg.collected, true);
    note_relay_end(end);
    co_return;
  }
  const bool is_known = status < 500 || status == 500 || status == 502 || status == 503 || status == 504;
  const bool keeps_status = is_known && status >= 400 && leg.role != HANDOFF_ROLE_AUXILIARY;
  auto error = SidecarError::auxiliary_upstream_error;
  if (is_prefill) error = SidecarError::prefill_upstream_error;
  if (leg.role == HANDOFF_ROLE_DECODE) error = SidecarError::decode_upstream_error;
  auto made =
      made_error(error, leg.asks_prefill() ? "The prefill engine failed." : "The decode engine failed.",
                 keeps_status ? status : 502);
  if (const auto* retry_after = leg.upstream->head().find(HeaderClass::retry_after)) {
    made.headers.emplace_back("retry-after", retry_after->value);
  }
  co_await answer(made);
}

}  // namespace handoff::sidecar
