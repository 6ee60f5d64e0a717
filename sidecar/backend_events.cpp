// What a DisaggregatedExchange tells its backend.
#include <boost/container/small_vector.hpp>

#include "sidecar/abi_text.hpp"
#include "sidecar/backend_services.hpp"
#include "sidecar/disaggregated_exchange_state.hpp"

namespace handoff::sidecar {
namespace {

std::uint32_t cause_of(LegFailure failure) {
  switch (failure) {
    case LegFailure::name:
    case LegFailure::connect:
      return HANDOFF_CAUSE_CONNECT;
    case LegFailure::connect_timeout:
      return HANDOFF_CAUSE_CONNECT_TIMEOUT;
    case LegFailure::read_timeout:
      return HANDOFF_CAUSE_READ_TIMEOUT;
    case LegFailure::deadline:
      return HANDOFF_CAUSE_DEADLINE;
    case LegFailure::malformed:
      return HANDOFF_CAUSE_MALFORMED;
    case LegFailure::too_large:
      return HANDOFF_CAUSE_TOO_LARGE;
    case LegFailure::overloaded:
      return HANDOFF_CAUSE_OVERLOADED;
    default:
      return HANDOFF_CAUSE_RESET;
  }
}

std::uint32_t outcome_of(ExchangeOutcome outcome) {
  switch (outcome) {
    case ExchangeOutcome::answered:
      return HANDOFF_OUTCOME_ANSWERED;
    case ExchangeOutcome::client_gone:
      return HANDOFF_OUTCOME_CLIENT_GONE;
    case ExchangeOutcome::broken:
      return HANDOFF_OUTCOME_BROKEN;
    case ExchangeOutcome::cancelled:
      return HANDOFF_OUTCOME_SHUTDOWN;
  }
  return HANDOFF_OUTCOME_BROKEN;
}

std::uint64_t monotonic_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count());
}
std::uint64_t unix_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
}

std::uint32_t leg_flags(const UpstreamLeg& leg) {
  std::uint32_t flags = 0;
  if (leg.request_sent()) flags |= HANDOFF_REQUEST_SENT;
  if (leg.on_reused()) flags |= HANDOFF_REUSED;
  if (leg.reply_started()) flags |= HANDOFF_REPLY_STARTED;
  return flags;
}

}  // namespace

handoff_status DisaggregatedExchange::begin() {
  const auto& head = request_->head;
  abi_headers_.reserve(head.fields.size());
  for (const auto& field : head.fields) abi_headers_.push_back({to_abi(field.name), to_abi(field.value)});
  handoff_request request{};
  request.struct_size = sizeof(request);
  request.method = to_abi(head.method);
  request.target = to_abi(head.target);
  request.path = to_abi(request_->path);
  request.headers = abi_headers_.data();
  request.header_count = abi_headers_.size();
  request.body = to_abi(request_->scan, request_->scan_status, request_->body.view(), abi_members_);
  if (const auto* prefill = std::get_if<PrefillEndpoint>(&request_->prefill)) {
    request.has_prefill = 1;
    request.prefill_host = to_abi(prefill->host());
    request.prefill_port = prefill->port();
  }
  request.request_id = to_abi(request_->record.request_id);
  request.now_ms = monotonic_ms();
  request.unix_ms = unix_ms();
  handoff_turn turn{this};
  in_entry_ = true;
  const auto status = services_.backend->begin(request, &turn, exchange_);
  in_entry_ = false;
  services_.backend_services->end_entry();
  return status;
}

handoff_status DisaggregatedExchange::deliver(const Event& event) {
  handoff_event out{};
  out.struct_size = sizeof(out);
  out.kind = event.kind;
  out.leg = event.leg->id;
  out.now_ms = monotonic_ms();
  out.unix_ms = unix_ms();
  const auto& upstream = *event.leg->upstream;
  out.flags = leg_flags(upstream);
  if (relay_.started()) out.flags |= HANDOFF_CLIENT_STARTED;
  boost::container::small_vector<handoff_header, 16> headers;
  if (upstream.times().head != Clock::time_point{}) {
    out.status = upstream.head().status;
    headers.reserve(upstream.head().fields.size());
    for (const auto& field : upstream.head().fields)
      headers.push_back({to_abi(field.name), to_abi(field.value)});
  }
  out.headers = headers.data();
  out.header_count = headers.size();
  if (event.kind == HANDOFF_EVENT_LEG_FAILED) out.cause = cause_of(event.leg->failure);
  if (event.kind == HANDOFF_EVENT_LEG_DONE) out.body = to_abi(event.leg->collected);
  if (event.kind == HANDOFF_EVENT_LEG_BODY) out.body = to_abi(event.piece);
  handoff_turn turn{this};
  in_entry_ = true;
  const auto status = exchange_.event(out, &turn);
  in_entry_ = false;
  services_.backend_services->end_entry();
  return status;
}

// What legs did before the end decides what the backend has to clean up, so it is told even when nobody waits
// for an answer any more.
void DisaggregatedExchange::tell_rest() {
  closing_ = true;
  for (const auto& event : std::exchange(events_, {})) {
    if (event.leg->given_up || !exchange_.active()) continue;
    if (deliver(event) != HANDOFF_OK) break;
  }
}

void DisaggregatedExchange::tell_end(ExchangeOutcome outcome) {
  if (!exchange_.active()) return;
  handoff_event out{};
  out.struct_size = sizeof(out);
  out.kind = HANDOFF_EVENT_END;
  out.leg = HANDOFF_NO_LEG;
  out.outcome = outcome_of(outcome);
  out.now_ms = monotonic_ms();
  out.unix_ms = unix_ms();
  if (relay_.started()) out.flags |= HANDOFF_CLIENT_STARTED;
  for (auto leg = legs_.rbegin(); leg != legs_.rend(); ++leg) {
    if ((*leg)->role != HANDOFF_ROLE_DECODE) continue;
    if ((*leg)->upstream) out.flags |= leg_flags(*(*leg)->upstream);
    break;
  }
  handoff_turn turn{this};
  in_entry_ = true;
  ending_ = true;
  if (exchange_.event(out, &turn) != HANDOFF_OK) services_.counters.add("backend_failed_at_end");
  in_entry_ = false;
  services_.backend_services->end_entry();
  exchange_.end();
}

}  // namespace handoff::sidecar
