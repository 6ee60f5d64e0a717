#include "backends/sglang/sglang_exchange.hpp"

#include <array>
#include <charconv>
#include <utility>

#include "backends/endpoints/chosen_rank.hpp"
#include "backends/json_text/json_text.hpp"
#include "backends/sglang/leg_bodies.hpp"
#include "backends/sglang/leg_headers.hpp"

namespace handoff::sglang {
namespace {

// A failure is short, so that what is longer is none; less than the sidecar holds at least, which is 64 KiB:
// a reply that the sidecar reads no further must have been judged. An event of a merged stream holds all that
// was said so far.
constexpr std::size_t kLongestLookedAt = std::size_t{32} * 1024;
constexpr std::size_t kLongestMerged = std::size_t{32} * 1024 * 1024;

bool says_retryable(const handoff_event& event) {
  return sdk::find_header(event.headers, event.header_count, "x-sglang-retryable") ==
         std::string_view("true");
}

// 503 is a full queue: those who ask a busy engine again what it is would only make it busier.
bool may_be_of_another_engine(std::uint32_t status) {
  return status >= 500 && status != 503;
}

// The engine's reasons are a fixed set; a counter's name must not come from the wire.
std::string_view counter_of_reason(std::string_view reason) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kReasons{{
      {"PD_REQUEST_INVALID", "pd_request_invalid"},
      {"PD_UNSUPPORTED", "pd_unsupported"},
      {"PD_CAPACITY_EXHAUSTED", "pd_capacity_exhausted"},
      {"PD_PROTOCOL_MISMATCH", "pd_protocol_mismatch"},
      {"PD_PEER_UNAVAILABLE", "pd_peer_unavailable"},
      {"PD_RENDEZVOUS_TIMEOUT", "pd_rendezvous_timeout"},
      {"PD_TRANSFER_TIMEOUT", "pd_transfer_timeout"},
      {"PD_TRANSFER_FAILED", "pd_transfer_failed"},
      {"PD_ACK_TIMEOUT", "pd_ack_timeout"},
      {"PD_ABORTED", "pd_aborted"},
      {"PD_STALE_EPOCH", "pd_stale_epoch"},
      {"PD_LOCAL_FATAL", "pd_local_fatal"},
  }};
  for (const auto& [name, counter] : kReasons) {
    if (name == reason) return counter;
  }
  return "pd_other_reason";
}

std::optional<std::uint32_t> number_in(std::optional<std::string_view> digits) {
  if (!digits) return std::nullopt;
  std::uint32_t number = 0;
  std::from_chars(digits->data(), digits->data() + digits->size(), number);
  return number;
}

}  // namespace

std::unique_ptr<sdk::Exchange> begin_exchange(const Shared& shared, const handoff_request& request,
                                              sdk::Turn& turn) {
  if (request.has_prefill == 0) {
    turn.decode_only("no_prefill_endpoint", LegHeaders::for_decode(request).fields());
    return nullptr;
  }
  const sdk::Object body(request.body);
  if (!body.is_object()) {
    turn.fail(
        {.status = 400, .code = "invalid_pd_request", .message = "The request body is not a JSON object."});
    return nullptr;
  }
  const auto shape = read_shape(sdk::view(request.path), body);
  if (!shape.refusal.empty()) {
    shared.host.count("refused");
    turn.fail({.status = 400,
               .code = "unsupported_pd_request",
               .message = shape.refusal,
               .param = shape.refused_field});
    return nullptr;
  }
  auto exchange = std::make_unique<SglangExchange>(shared, request, shape);
  exchange->start(turn);
  return exchange;
}

SglangExchange::SglangExchange(const Shared& shared, const handoff_request& request,
                               const RequestShape& shape)
    : shared_(shared),
      request_(request),
      body_(request.body),
      shape_(shape),
      prefill_endpoint_(endpoints::endpoint_key(request)),
      events_(shape.merges_logprobs ? kLongestMerged : kLongestLookedAt) {
  const auto* stream = body_.find("stream");
  wants_stream_ = stream != nullptr && json_text::reads_as_true(body_.raw(*stream));
}

void SglangExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (event.kind == HANDOFF_EVENT_END) {
    on_end(event, turn);
    return;
  }
  const bool nothing_shown = phase_ == Phase::asking || phase_ == Phase::paired;
  if (nothing_shown && (event.flags & HANDOFF_CLIENT_STARTED) != 0) phase_ = Phase::settled;  // not by us
  const bool of_prefill = prefill_.leg != 0 && event.leg == prefill_.leg;
  const bool of_decode = decode_.leg != 0 && event.leg == decode_.leg;
  if (of_prefill) note(prefill_, event);
  if (of_decode) note(decode_, event);
  if (phase_ == Phase::asking) {
    on_info(event, turn);
  } else if (event.kind == HANDOFF_EVENT_LEG_CONNECTED) {
    on_connected(event, turn);
  } else if (event.leg != 0 && (event.leg == prefill_info_leg_ || event.leg == decode_info_leg_)) {
    on_checked(event, turn);
  } else if (of_decode && phase_ != Phase::settled) {
    on_decode(event, turn);
  } else if (of_prefill && phase_ == Phase::paired) {
    on_prefill(event, turn);
  }
}

// --------------------------------------------------------------------------------------------- the pair

/// The picker's, else the client's. Room, prefill and decode must agree on it: decode would look for the
/// prompt where it isn't, and prefill refuses a rank that contradicts the room. False: the request was
/// refused.
bool SglangExchange::choose_prefill_rank(sdk::Turn& turn) {
  prefill_rank_ = endpoints::chosen_rank(request_, endpoints::kPrefillRankHeader);
  const auto* wish = body_.find(kPrefillRankMember);
  // Where the port is configured no engine told how many ranks it has, so that no room can have a rank.
  const bool is_heard =
      wish != nullptr && wish->kind != HANDOFF_JSON_NULL && shared_.settings.bootstrap_port == 0;
  if (prefill_rank_ || !is_heard) return true;
  const auto digits = body_.raw(*wish);
  if (json_text::plain_integer(digits, prefill_info_.ranks - 1) >= 0) {
    prefill_rank_ = digits;
    return true;
  }
  shared_.host.count("refused");
  phase_ = Phase::settled;
  const std::string message =
      "disagg_prefill_dp_rank must be an integer below the number of the prefill engine's ranks, " +
      std::to_string(prefill_info_.ranks) + ".";
  turn.fail({.status = 400, .code = "invalid_pd_request", .message = message, .param = kPrefillRankMember});
  return false;
}

void SglangExchange::start_pair(sdk::Turn& turn) {
  if (!choose_prefill_rank(turn)) return;
  phase_ = Phase::paired;
  prefill_good_ = decode_good_ = decode_done_ = decode_is_stream_ = false;
  decode_status_ = 0;
  looked_at_ = 0;
  pairing_ = new_pairing(shared_.host, {.items = shape_.items,
                                        .prefill_host = sdk::view(request_.prefill_host),
                                        .bootstrap_port = prefill_info_.bootstrap_port,
                                        .prefill_rank = number_in(prefill_rank_),
                                        .prefill_ranks = prefill_info_.ranks});
  start_prefill(turn);
  start_decode(turn);
}

void SglangExchange::start_prefill(sdk::Turn& turn) {
  const auto body = prefill_body(body_, pairing_);
  const auto headers = LegHeaders::for_prefill(prefill_rank_);
  sdk::Leg leg;
  leg.id = ++last_leg_;
  leg.role = HANDOFF_ROLE_PREFILL;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_COLLECT;
  if (prefill_from_memory_) leg.flags = HANDOFF_LEG_WANT_CONNECTED;
  leg.headers = headers.fields();
  leg.body = body;
  prefill_ = {.leg = leg.id, .running = true, .unfinished = true};
  turn.start(leg);
}

void SglangExchange::start_decode(sdk::Turn& turn) {
  const auto body = decode_body(body_, pairing_, prefill_rank_);
  const auto headers = LegHeaders::for_decode(request_);
  sdk::Leg leg;
  leg.id = ++last_leg_;
  leg.role = HANDOFF_ROLE_DECODE;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = HANDOFF_REPLY_HOLD;
  leg.flags = HANDOFF_LEG_WANT_HEAD | HANDOFF_LEG_WANT_BODY;
  if (shape_.merges_logprobs) {
    leg.reply = wants_stream_ ? HANDOFF_REPLY_STREAM : HANDOFF_REPLY_COLLECT;
    leg.flags = wants_stream_ ? HANDOFF_LEG_WANT_HEAD : 0;
  }
  if (decode_from_memory_) leg.flags |= HANDOFF_LEG_WANT_CONNECTED;
  leg.headers = headers.fields();
  leg.body = body;
  decode_ = {.leg = leg.id, .running = true, .unfinished = true};
  turn.start(leg);
}

void SglangExchange::note(Side& side, const handoff_event& event) {
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  const bool failed = event.kind == HANDOFF_EVENT_LEG_FAILED;
  if (!done && !failed) return;
  side.running = false;
  // A request of which nothing was sent has left nothing behind.
  if (done || (event.flags & HANDOFF_REQUEST_SENT) == 0) side.unfinished = false;
}

void SglangExchange::on_prefill(const handoff_event& event, sdk::Turn& turn) {
  if (event.kind == HANDOFF_EVENT_LEG_FAILED) {
    on_leg_failed(event, turn);
    return;
  }
  if (event.kind != HANDOFF_EVENT_LEG_DONE) return;
  if (!sdk::is_success(event.status)) {
    on_rejected(event, turn);
    return;
  }
  const auto reply = sdk::view(event.body);
  if (const auto defect = find_prefill_defect(shared_.host, reply, shape_); !defect.empty()) {
    shared_.host.count("invalid_prefill_reply");
    if (const auto reason = sdk::find_header(event.headers, event.header_count, "x-sglang-pd-reason"))
      shared_.host.count(counter_of_reason(*reason));
    forget_engines();
    const auto failure = find_reported_failure(reply);
    if ((says_retryable(event) || (failure && failure->retryable)) && may_start_over()) {
      start_over(turn);
      return;
    }
    const std::string message = "The prefill engine's reply can't be used: " + std::string(defect) + ".";
    fail(502, "invalid_prefill_handoff", message, event.leg, turn);
    return;
  }
  prefill_good_ = true;
  confirm_engines(event.now_ms);
  if (shape_.merges_logprobs) logprobs_ = PromptLogprobs(reply, shape_);
  advance(turn);
}

void SglangExchange::on_decode(const handoff_event& event, sdk::Turn& turn) {
  switch (event.kind) {
    case HANDOFF_EVENT_LEG_HEAD:
      on_decode_head(event, turn);
      break;
    case HANDOFF_EVENT_LEG_BODY:
      on_decode_piece(event, turn);
      break;
    case HANDOFF_EVENT_LEG_DONE:
      on_decode_done(event, turn);
      break;
    case HANDOFF_EVENT_LEG_FAILED:
      on_leg_failed(event, turn);
      break;
    default:
      break;
  }
}

void SglangExchange::on_decode_head(const handoff_event& event, sdk::Turn& turn) {
  if (phase_ != Phase::paired) return;
  decode_status_ = event.status;
  const auto type = sdk::find_header(event.headers, event.header_count, "content-type");
  content_type_ = type.value_or("application/json");
  decode_is_stream_ = is_event_stream(type);
  decode_is_retryable_ = says_retryable(event);
  decode_reason_ = sdk::find_header(event.headers, event.header_count, "x-sglang-pd-reason").value_or("");
  if (!sdk::is_success(event.status)) on_rejected(event, turn);
}

void SglangExchange::on_decode_piece(const handoff_event& event, sdk::Turn& turn) {
  const auto piece = sdk::view(event.body);
  if (phase_ == Phase::answering) {
    if (!shape_.merges_logprobs) return;
    if (!sdk::is_success(decode_status_)) {
      pass_on(piece, false, turn);
      return;
    }
  }
  looked_at_ += piece.size();
  if (!decode_is_stream_) {
    if (shape_.merges_logprobs || !decode_good_) decode_reply_.append(piece);
    if (decode_reply_.size() > kLongestMerged) {
      fail(502, "decode_upstream_error", "The decode engine's reply is above 32 MiB, too large to be merged.",
           event.leg, turn);
      return;
    }
    if (looked_at_ <= kLongestLookedAt) return;  // judged when it is whole
    decode_good_ = true;
    if (!shape_.merges_logprobs) decode_reply_.clear();
    advance(turn);
    return;
  }
  events_.feed(piece);
  while (const auto whole = events_.next()) {
    const auto data = event_data(*whole);
    if (phase_ == Phase::paired && data) {
      if (const auto failure = find_reported_failure(*data)) {
        on_reported_failure(*failure, turn);
        return;
      }
    }
    if (whole->find("data:") != std::string_view::npos) decode_good_ = true;  // a comment says nothing
    if (shape_.merges_logprobs) keep_event(*whole, turn);
  }
  if (events_.is_overlong()) {
    if (shape_.merges_logprobs) {
      fail(502, "decode_upstream_error", "The decode engine's event is too large to be merged.", event.leg,
           turn);
      return;
    }
  }
  if (looked_at_ > kLongestLookedAt) decode_good_ = true;
  if (phase_ == Phase::paired) advance(turn);
}

void SglangExchange::on_decode_done(const handoff_event& event, sdk::Turn& turn) {
  decode_done_ = true;
  if (phase_ == Phase::answering) {
    if (!shape_.merges_logprobs) {
      phase_ = Phase::settled;
    } else if (sdk::is_success(decode_status_)) {
      finish_merged(turn);
    } else {
      pass_on({}, true, turn);
      settle(turn);
    }
    return;
  }
  if (!sdk::is_success(event.status)) {
    on_rejected(event, turn);
    return;
  }
  decode_status_ = event.status;
  if (shape_.merges_logprobs && !wants_stream_) {
    const auto type = sdk::find_header(event.headers, event.header_count, "content-type");
    content_type_ = type.value_or("application/json");
    decode_reply_ = sdk::view(event.body);
  }
  if (!decode_good_) {
    const std::string_view left = decode_is_stream_ ? event_data(events_.rest()).value_or("") : decode_reply_;
    if (const auto failure = find_reported_failure(left)) {
      on_reported_failure(*failure, turn);
      return;
    }
  }
  decode_good_ = true;
  advance(turn);
}

void SglangExchange::advance(sdk::Turn& turn) {
  if (phase_ != Phase::paired || !prefill_good_ || !decode_good_) return;
  if (!shape_.merges_logprobs) {
    phase_ = Phase::answering;
    turn.relay(decode_.leg);
  } else if (decode_done_ && !decode_is_stream_) {
    answer_merged(turn);
  } else if (decode_is_stream_ ||
             wants_stream_) {  // no stream though one was asked for: it is merged when it is whole
    begin_merged(turn);
  }
}

// --------------------------------------------------------------------------------------------- failures

void SglangExchange::on_leg_failed(const handoff_event& event, sdk::Turn& turn) {
  forget_failed(event);
  if (phase_ == Phase::answering && shape_.merges_logprobs) {  // breaks the answer that was begun
    fail(502, "decode_upstream_error", "The decode engine's answer broke.", event.leg, turn);
    return;
  }
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) {
    phase_ = Phase::settled;
    return;
  }
  if (phase_ == Phase::paired && sdk::lost_in_transit(event) && may_start_over()) {
    start_over(turn);
    return;
  }
  settle(turn);
  turn.fail_with_leg(event.leg);
}

/// An engine refused the request, with a status.
void SglangExchange::on_rejected(const handoff_event& event, sdk::Turn& turn) {
  if (const auto reason = sdk::find_header(event.headers, event.header_count, "x-sglang-pd-reason"))
    shared_.host.count(counter_of_reason(*reason));
  if (may_be_of_another_engine(event.status)) forget_engines();
  if (says_retryable(event) && may_start_over()) {
    start_over(turn);
    return;
  }
  if (event.kind == HANDOFF_EVENT_LEG_DONE) {
    settle(turn);
    turn.fail_with_leg(event.leg);
    return;
  }
  // Decode's head: its own answer is the client's, while it still comes.
  give_up(prefill_, HANDOFF_TARGET_PREFILL, turn);
  phase_ = Phase::answering;
  if (!shape_.merges_logprobs) {
    turn.relay(decode_.leg);
    return;
  }
  std::vector<handoff_header> headers{sdk::header("content-type", content_type_)};
  for (const std::string_view name : {"retry-after", "x-sglang-pd-reason", "x-sglang-retryable"}) {
    if (const auto value = sdk::find_header(event.headers, event.header_count, name))
      headers.push_back(sdk::header(name, *value));
  }
  turn.respond(event.status, headers, {}, /*more=*/true);
}

void SglangExchange::on_reported_failure(const ReportedFailure& failure, sdk::Turn& turn) {
  shared_.host.count("decode_reported_failure");
  if (!decode_reason_.empty()) shared_.host.count(counter_of_reason(decode_reason_));
  if (may_be_of_another_engine(failure.status)) forget_engines();
  if ((failure.retryable || decode_is_retryable_) && may_start_over()) {
    start_over(turn);
    return;
  }
  if (failure.answer.empty()) {
    fail(failure.status, "decode_upstream_error", "The decode engine reported a failure in its answer.",
         decode_.leg, turn);
    return;
  }
  // About the client's request, and told as if it had come with that status.
  settle(turn);
  const std::array headers{sdk::header("content-type", "application/json")};
  const std::array body{handoff_piece{failure.answer.data(), 0, failure.answer.size()}};
  turn.respond(failure.status, headers, body);
}

void SglangExchange::start_over(sdk::Turn& turn) {
  tried_again_ = true;
  shared_.host.count("started_over");
  begin_anew(turn);
}

void SglangExchange::begin_anew(sdk::Turn& turn) {
  give_up(prefill_, HANDOFF_TARGET_PREFILL, turn);
  give_up(decode_, HANDOFF_TARGET_LOCAL, turn);
  waiting_.clear();
  decode_reply_.clear();
  events_ = EventReader(shape_.merges_logprobs ? kLongestMerged : kLongestLookedAt);
  for (auto* leg : {&prefill_info_leg_, &decode_info_leg_}) {
    if (*leg != 0) turn.cancel(*leg);
    *leg = 0;
  }
  if (prefill_from_memory_ || decode_from_memory_) {  // another engine may listen there by now
    ask_again(turn);
  } else {
    start_pair(turn);
  }
}

void SglangExchange::give_up(Side& side, std::uint32_t target, sdk::Turn& turn) {
  if (side.running) turn.cancel(side.leg);
  side.running = false;
  if (side.unfinished) abort(target, turn);
  side.unfinished = false;
}

/// Closing a connection is noticed seconds later, and an abort that comes before the scheduler has the
/// request is lost: only both together are sure.
void SglangExchange::abort(std::uint32_t target, sdk::Turn& turn) {
  constexpr std::uint32_t kDeadlineMs = 5000;
  constexpr std::size_t kMostCalls = 64;  // the rest of a large batch is left to its connection
  const CallHeaders headers(request_, /*has_body=*/true);
  std::size_t calls = 0;
  for (const auto& rid : pairing_.rids) {
    if (calls++ == kMostCalls) break;
    const std::string text = R"({"rid":")" + rid + R"(","abort_all":false})";
    const std::array body{handoff_piece{text.data(), 0, text.size()}};
    sdk::Leg leg;
    leg.role = HANDOFF_ROLE_AUXILIARY;
    leg.target = target;
    leg.reply = HANDOFF_REPLY_DISCARD;
    leg.flags = HANDOFF_LEG_NO_CLIENT_HEADERS;
    leg.deadline_ms = kDeadlineMs;
    leg.method = "POST";
    leg.path = "/abort_request";
    leg.name = "abort";
    leg.headers = headers.fields();
    leg.body = body;
    turn.background(leg);
  }
}

/// The client's answer is decided: what an engine still does is of no use.
void SglangExchange::settle(sdk::Turn& turn) {
  phase_ = Phase::settled;
  for (auto [side, target] :
       {std::pair{&prefill_, HANDOFF_TARGET_PREFILL}, std::pair{&decode_, HANDOFF_TARGET_LOCAL}}) {
    if (side->unfinished) abort(target, turn);
    side->unfinished = false;
  }
}

void SglangExchange::fail(std::uint32_t status, std::string_view code, std::string_view message,
                          std::uint32_t leg, sdk::Turn& turn) {
  settle(turn);
  turn.fail({.status = status, .code = code, .message = message, .leg = leg});
}

void SglangExchange::on_end(const handoff_event& event, sdk::Turn& turn) {
  // Decode's relayed answer ends without an event of its own when all went well.
  if (phase_ == Phase::answering && event.outcome == HANDOFF_OUTCOME_ANSWERED) decode_.unfinished = false;
  settle(turn);
}

}  // namespace handoff::sglang
