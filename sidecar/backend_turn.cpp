// What a backend asks a DisaggregatedExchange for: checked and recorded. Events are in backend_events.cpp.
#include <algorithm>
#include <cstring>

#include "sidecar/abi_text.hpp"
#include "sidecar/backend_services.hpp"
#include "sidecar/disaggregated_exchange.hpp"
#include "sidecar/disaggregated_exchange_state.hpp"
#include "sidecar/leg_head.hpp"
#include "sidecar/request_target.hpp"

namespace handoff::sidecar {
namespace {

constexpr milliseconds kBackgroundDeadline{5000};

bool is_token(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Nothing that could end a header line may come out of a plugin.
bool is_header_text(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
}
bool is_header_name(std::string_view text) {
  return !text.empty() && is_header_text(text) &&
         std::none_of(text.begin(), text.end(), [](char c) { return c == ' ' || c == ':'; });
}
bool are_headers(const handoff_header* headers, std::size_t count) {
  return std::all_of(headers, headers + count, [](const auto& field) {
    return is_header_name(view(field.name)) && is_header_text(view(field.value));
  });
}
bool is_target(std::string_view text) {
  return text.empty() || (text[0] == '/' && is_header_text(text) && text.find(' ') == std::string_view::npos);
}

// A struct of the backend's as we know it: what its version lacks is zero.
template <class Struct>
Struct known_part(const Struct* given) {
  Struct out{};
  std::memcpy(&out, given, std::min<std::size_t>(given->struct_size, sizeof(Struct)));
  return out;
}

}  // namespace

// ------------------------------------------------------------------------------------------- checking

DisaggregatedExchange::Leg* DisaggregatedExchange::find(std::uint32_t id) const {
  for (const auto& leg : legs_) {
    if (leg->id == id) return leg.get();
  }
  return nullptr;
}

handoff_status DisaggregatedExchange::check_leg(const handoff_leg& leg) const {
  if (leg.role > HANDOFF_ROLE_AUXILIARY || leg.target > HANDOFF_TARGET_LOCAL || leg.port > 65535)
    return HANDOFF_INVALID;
  if (leg.reply > HANDOFF_REPLY_DISCARD) return HANDOFF_INVALID;
  if (leg.target == HANDOFF_TARGET_PREFILL && !std::holds_alternative<PrefillEndpoint>(request_->prefill)) {
    return HANDOFF_INVALID;
  }
  if (!is_target(view(leg.path)) || !is_header_text(view(leg.method)) ||
      view(leg.method).find(' ') != std::string_view::npos || !are_headers(leg.headers, leg.header_count)) {
    return HANDOFF_INVALID;
  }
  return HANDOFF_OK;
}

// False: a piece lies outside the request's body, or that is gone.
bool DisaggregatedExchange::gather_body(const handoff_leg& leg, LegBody& out) const {
  const auto original = request_->body.view();
  if ((leg.flags & HANDOFF_LEG_CLIENT_BODY) != 0) {
    out.pieces.push_back(original);
    out.size = original.size();
    return !body_gone_;
  }
  std::size_t added = 0;
  for (const auto& piece : std::span(leg.body, leg.piece_count)) {
    if (piece.data != nullptr) {
      added += piece.size;
    } else if (piece.offset > original.size() || piece.size > original.size() - piece.offset) {
      return false;
    }
    out.size += piece.size;
  }
  out.added.resize(added, boost::container::default_init);
  char* at = out.added.data();
  bool last_is_added = false;
  for (const auto& piece : std::span(leg.body, leg.piece_count)) {
    if (piece.data == nullptr) {
      out.pieces.push_back(original.substr(piece.offset, piece.size));
      last_is_added = false;
      continue;
    }
    std::memcpy(at, piece.data, piece.size);
    if (last_is_added) {  // new bytes that follow new bytes become one piece
      out.pieces.back() = {out.pieces.back().data(), out.pieces.back().size() + piece.size};
    } else {
      out.pieces.emplace_back(at, piece.size);
    }
    at += piece.size;
    last_is_added = true;
  }
  return true;
}

EngineAddress DisaggregatedExchange::engine_of(const handoff_leg& leg) const {
  if (leg.target == HANDOFF_TARGET_LOCAL) {
    const auto& local = services_.plan.local_engine;
    return leg.port == 0 ? local : make_engine_address(local.host, static_cast<std::uint16_t>(leg.port));
  }
  const auto& prefill = std::get<PrefillEndpoint>(request_->prefill);
  if (leg.port == 0) return {std::string(prefill.host()), prefill.port(), prefill.authority()};
  return make_engine_address(prefill.host(), static_cast<std::uint16_t>(leg.port));
}

std::string DisaggregatedExchange::head_of(const handoff_leg& leg, const EngineAddress& engine,
                                           std::size_t body_size) const {
  boost::container::small_vector<HeaderOverride, 4> overrides;
  for (const auto& field : std::span(leg.headers, leg.header_count)) {
    overrides.push_back({view(field.name), view(field.value)});
  }
  const bool is_read = leg.reply == HANDOFF_REPLY_COLLECT || leg.reply == HANDOFF_REPLY_STREAM ||
                       (leg.flags & HANDOFF_LEG_WANT_BODY) != 0;
  const bool own_headers = (leg.flags & HANDOFF_LEG_NO_CLIENT_HEADERS) == 0;
  std::string buffer;
  const LegHead head{
      .method = leg.method.size == 0 ? request_->head.method : view(leg.method),
      .target = leg.path.size == 0 ? origin_form(request_->head.target, buffer) : view(leg.path),
      .engine = &engine,
      .client = own_headers ? &request_->head : nullptr,
      .overrides = {overrides.data(), overrides.size()},
      .keep_accept_encoding = !is_read,
      .request_id_if_absent = request_->record.request_id};
  LegFraming framing;
  if (body_size > 0 || view(leg.method) != "GET") framing.content_length = body_size;
  return write_leg_head(head, framing);
}

// ------------------------------------------------------------------------------------------ recording

handoff_status DisaggregatedExchange::start(const handoff_leg& given) {
  const auto spec = known_part(&given);
  if (!in_entry_ || ending_ || claim_ == Claim::final) return HANDOFF_WRONG_STATE;
  if (spec.reply == HANDOFF_REPLY_RELAY && claim_ != Claim::none) return HANDOFF_WRONG_STATE;
  if (const auto status = check_leg(spec); status != HANDOFF_OK) return status;
  if (find(spec.id) != nullptr || legs_.size() == HANDOFF_MAX_LEGS) return HANDOFF_INVALID;
  const auto& config = services_.plan.config;
  auto leg = std::make_unique<Leg>(services_);
  if (!gather_body(spec, leg->body)) return HANDOFF_INVALID;
  leg->id = spec.id;
  leg->role = spec.role;
  leg->target = spec.target;
  leg->reply = spec.reply;
  leg->flags = spec.flags;
  leg->linger = milliseconds(spec.linger_ms);
  leg->deadline = milliseconds(spec.deadline_ms);
  if (spec.deadline_ms == 0 && spec.role == HANDOFF_ROLE_PREFILL) leg->deadline = config.prefill_deadline;
  if (spec.deadline_ms == 0 && spec.role == HANDOFF_ROLE_AUXILIARY) leg->deadline = config.connect_timeout;
  leg->reply_limit = spec.reply_limit == 0 ? config.max_prefill_response_bytes : spec.reply_limit;
  leg->engine = engine_of(spec);
  leg->is_head = view(spec.method) == "HEAD";
  leg->head = head_of(spec, leg->engine, leg->body.size);
  if (spec.reply == HANDOFF_REPLY_RELAY) claim_ = Claim::leg;
  actions_.emplace_back(StartLeg{leg.get()});
  legs_.push_back(std::move(leg));
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::cancel_leg(std::uint32_t id) {
  auto* leg = find(id);
  if (leg == nullptr) return HANDOFF_INVALID;
  if (!in_entry_ || ending_) return HANDOFF_WRONG_STATE;
  actions_.emplace_back(CancelLeg{leg});
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::relay_leg(std::uint32_t id) {
  auto* leg = find(id);
  if (leg == nullptr || leg->given_up) return HANDOFF_INVALID;
  if (leg->reply == HANDOFF_REPLY_HOLD && leg->finished && leg->failure != LegFailure::none) {
    // Its failure may be on its way to the backend, which can't know: LEG_FAILED then asks for another
    // answer.
    const bool is_told =
        std::none_of(events_.begin(), events_.end(), [leg](const auto& event) { return event.leg == leg; });
    if (is_told) return HANDOFF_INVALID;
    return may_answer() ? HANDOFF_OK : HANDOFF_WRONG_STATE;
  }
  const bool held = leg->reply == HANDOFF_REPLY_HOLD;
  const bool collected =
      leg->reply == HANDOFF_REPLY_COLLECT && leg->finished && leg->failure == LegFailure::none;
  if (!held && !collected) return HANDOFF_INVALID;
  if (!may_answer()) return HANDOFF_WRONG_STATE;
  claim_ = Claim::leg;
  actions_.emplace_back(RelayLeg{leg});
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::respond(const handoff_reply& given) {
  const auto reply = known_part(&given);
  if (reply.status < 200 || reply.status > 599 || !are_headers(reply.headers, reply.header_count))
    return HANDOFF_INVALID;
  if (!may_answer()) return HANDOFF_WRONG_STATE;
  const auto original = request_->body.view();
  Respond action{.answer = {reply.status, {}, {}}, .more = reply.more};
  for (const auto& field : std::span(reply.headers, reply.header_count)) {
    action.answer.headers.emplace_back(view(field.name), view(field.value));
  }
  for (const auto& piece : std::span(reply.body, reply.piece_count)) {
    if (piece.data != nullptr) {
      action.answer.body.append(piece.data, piece.size);
    } else if (piece.offset <= original.size() && piece.size <= original.size() - piece.offset) {
      action.answer.body.append(original.substr(piece.offset, piece.size));
    } else {
      return HANDOFF_INVALID;
    }
  }
  claim_ = reply.more ? Claim::stream : Claim::final;
  Write first{std::move(action.answer.body), false};
  if (!reply.more) action.answer.body = std::move(first.bytes);
  actions_.emplace_back(std::move(action));
  if (reply.more && !first.bytes.empty()) actions_.emplace_back(std::move(first));
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::write(std::span<const handoff_piece> pieces, bool last) {
  if (!in_entry_ || ending_ || claim_ != Claim::stream) return HANDOFF_WRONG_STATE;
  const auto original = request_->body.view();
  Write action{{}, last};
  for (const auto& piece : pieces) {
    if (piece.data != nullptr) {
      action.bytes.append(piece.data, piece.size);
    } else if (piece.offset <= original.size() && piece.size <= original.size() - piece.offset) {
      action.bytes.append(original.substr(piece.offset, piece.size));
    } else {
      return HANDOFF_INVALID;
    }
  }
  if (last) claim_ = Claim::final;
  actions_.emplace_back(std::move(action));
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::fail(const handoff_failure& given) {
  const auto failure = known_part(&given);
  if (failure.status < 400 || failure.status > 599 || !is_token(view(failure.code))) return HANDOFF_INVALID;
  if (!in_entry_ || ending_ || claim_ == Claim::final) return HANDOFF_WRONG_STATE;
  claim_ = Claim::final;
  std::optional<std::string_view> param;
  if (failure.param.size > 0) param = view(failure.param);
  Answer answer{failure.status,
                {{"content-type", "application/json"}},
                error_body(view(failure.code), error_type(failure.status), view(failure.message), param)};
  if (failure.retry_after_s != 0)
    answer.headers.emplace_back("retry-after", std::to_string(failure.retry_after_s));
  request_->record.error_code = view(failure.code);
  actions_.emplace_back(Respond{std::move(answer), false});
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::fail_with_leg(std::uint32_t id) {
  auto* leg = find(id);
  if (leg == nullptr || !leg->finished) return HANDOFF_INVALID;
  if (!may_answer()) return HANDOFF_WRONG_STATE;
  claim_ = Claim::final;
  actions_.emplace_back(FailWithLeg{leg});
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::decode_only(std::string_view reason,
                                                  std::span<const handoff_header> headers) {
  if (!is_token(reason) || !are_headers(headers.data(), headers.size())) return HANDOFF_INVALID;
  if (!may_answer()) return HANDOFF_WRONG_STATE;
  const bool has_prefill = std::holds_alternative<PrefillEndpoint>(request_->prefill);
  if (has_prefill && services_.plan.backend->needs_prefill()) return HANDOFF_WRONG_STATE;
  claim_ = Claim::final;
  request_->record.reason = reason;
  for (const auto& field : headers) decode_only_headers_.emplace_back(view(field.name), view(field.value));
  actions_.emplace_back(DecodeOnly{});
  return HANDOFF_OK;
}

handoff_status DisaggregatedExchange::background(const handoff_leg& given) {
  const auto spec = known_part(&given);
  if (!in_entry_) return HANDOFF_WRONG_STATE;
  if (const auto status = check_leg(spec); status != HANDOFF_OK) return status;
  if (spec.name.size > 0 && !is_token(view(spec.name))) return HANDOFF_INVALID;
  LegBody body;
  if (!gather_body(spec, body)) return HANDOFF_INVALID;
  BackgroundCalls::Call call;
  call.name = spec.name.size == 0 ? "unnamed" : view(spec.name);
  call.engine = engine_of(spec);
  call.head = head_of(spec, call.engine, body.size);
  call.body.reserve(body.size);
  for (const auto piece : body.pieces) call.body.append(piece);
  call.deadline = spec.deadline_ms == 0 ? kBackgroundDeadline : milliseconds(spec.deadline_ms);
  services_.background.start(std::move(call));
  return HANDOFF_OK;
}

// ------------------------------------------------------------------------- the functions of the host table

namespace {

// Runs an action, unless the end is decided already.
template <class Action>
handoff_status unless_closing(handoff_turn* turn, Action action) {
  return turn->exchange->closing() ? HANDOFF_OK : action(*turn->exchange);
}

}  // namespace

void install_actions(handoff_host_api& api) {
  api.start = [](handoff_turn* turn, const handoff_leg* leg) {
    return unless_closing(turn, [&](auto& exchange) { return exchange.start(*leg); });
  };
  api.cancel = [](handoff_turn* turn, std::uint32_t leg) {
    return unless_closing(turn, [&](auto& exchange) { return exchange.cancel_leg(leg); });
  };
  api.relay = [](handoff_turn* turn, std::uint32_t leg) {
    return unless_closing(turn, [&](auto& exchange) { return exchange.relay_leg(leg); });
  };
  api.respond = [](handoff_turn* turn, const handoff_reply* reply) {
    return unless_closing(turn, [&](auto& exchange) { return exchange.respond(*reply); });
  };
  api.write = [](handoff_turn* turn, const handoff_piece* pieces, std::size_t count, bool last) {
    return unless_closing(turn, [&](auto& exchange) { return exchange.write({pieces, count}, last); });
  };
  api.fail = [](handoff_turn* turn, const handoff_failure* failure) {
    return unless_closing(turn, [&](auto& exchange) { return exchange.fail(*failure); });
  };
  api.fail_with_leg = [](handoff_turn* turn, std::uint32_t leg) {
    return unless_closing(turn, [&](auto& exchange) { return exchange.fail_with_leg(leg); });
  };
  api.decode_only = [](handoff_turn* turn, handoff_bytes reason, const handoff_header* headers,
                       std::size_t count) {
    return unless_closing(turn, [&](auto& exchange) {
      return exchange.decode_only(view(reason), {headers, count});
    });
  };
  api.background = [](handoff_turn* turn, const handoff_leg* leg) {
    return turn->exchange->background(*leg);
  };
}

}  // namespace handoff::sidecar
