// What SglangExchange asks engines before the first pair: their part, and where prefill's bootstrap server
// is.
#include <utility>

#include "backends/sglang/leg_headers.hpp"
#include "backends/sglang/sglang_exchange.hpp"

namespace handoff::sglang {
namespace {

constexpr std::string_view kPath = "/server_info";
constexpr std::uint64_t kLargestInfo = std::uint64_t{1} << 20;
constexpr std::string_view kLocal = "local";  // no endpoint's key is one word
constexpr std::string_view kMismatch = "engine_role_mismatch";

}  // namespace

void SglangExchange::start(sdk::Turn& turn) {
  if (shared_.settings.bootstrap_port != 0) {
    prefill_info_.bootstrap_port = shared_.settings.bootstrap_port;
    start_pair(turn);
    return;
  }
  const auto* prefill = shared_.memory.find(prefill_endpoint_, request_.now_ms);
  const auto* local = shared_.memory.find(std::string(kLocal), request_.now_ms);
  if (prefill != nullptr) prefill_info_ = *prefill;
  if (local != nullptr) decode_info_ = *local;
  prefill_from_memory_ = prefill != nullptr;
  decode_from_memory_ = local != nullptr;
  if (prefill != nullptr && local != nullptr) {
    start_pair(turn);
    return;
  }
  if (prefill == nullptr) ask(HANDOFF_TARGET_PREFILL, turn);
  if (local == nullptr) ask(HANDOFF_TARGET_LOCAL, turn);
}

void SglangExchange::ask_again(sdk::Turn& turn) {
  shared_.memory.forget(prefill_endpoint_);
  phase_ = Phase::asking;
  start(turn);
}

/// A failure that an engine reports may be of either's making.
void SglangExchange::forget_engines() {
  shared_.memory.forget(prefill_endpoint_);
  shared_.memory.forget(std::string(kLocal));
}

/// A connection that fails says something of one engine; an engine that is waited for in vain waits for the
/// other.
void SglangExchange::forget_failed(const handoff_event& failure) {
  if (failure.cause == HANDOFF_CAUSE_READ_TIMEOUT || failure.cause == HANDOFF_CAUSE_DEADLINE) {
    forget_engines();
  } else {
    shared_.memory.forget(failure.leg == prefill_.leg ? prefill_endpoint_ : std::string(kLocal));
  }
}

/// Prefill ends well only if decode found it where it says, and took its blocks.
void SglangExchange::confirm_engines(std::uint64_t now_ms) {
  shared_.memory.confirm(prefill_endpoint_, prefill_info_, now_ms);
  shared_.memory.confirm(std::string(kLocal), decode_info_, now_ms);
}

/// An engine whose connection had to be made anew may be another one than the one that is remembered: it is
/// asked again, beside the pair, and what is known of it is good for no other request meanwhile.
void SglangExchange::on_connected(const handoff_event& event, sdk::Turn& turn) {
  if (phase_ != Phase::paired || (event.flags & HANDOFF_REUSED) != 0) return;
  if (event.leg == prefill_.leg && prefill_from_memory_ && prefill_info_leg_ == 0) {
    shared_.memory.forget(prefill_endpoint_);
    ask(HANDOFF_TARGET_PREFILL, turn);
  } else if (event.leg == decode_.leg && decode_from_memory_ && decode_info_leg_ == 0) {
    shared_.memory.forget(std::string(kLocal));
    ask(HANDOFF_TARGET_LOCAL, turn);
  }
}

/// The answer to that. One that says what was said before changes nothing; nor does none, which is the pair's
/// own failure if it is one.
void SglangExchange::on_checked(const handoff_event& event, sdk::Turn& turn) {
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (phase_ == Phase::settled || (!done && event.kind != HANDOFF_EVENT_LEG_FAILED)) return;
  const bool of_prefill = event.leg == prefill_info_leg_;
  (of_prefill ? prefill_info_leg_ : decode_info_leg_) = 0;
  if (!done) return;
  const auto& known = of_prefill ? prefill_info_ : decode_info_;
  auto info = event.status == 200 ? read_server_info(shared_.host, sdk::view(event.body)) : EngineInfo{};
  if (info == known && info.mode != EngineMode::unknown) {
    shared_.memory.remember(of_prefill ? prefill_endpoint_ : std::string(kLocal), std::move(info),
                            event.now_ms);
    return;
  }
  if (phase_ != Phase::paired) return;
  shared_.host.count("engine_changed");
  give_up(prefill_, HANDOFF_TARGET_PREFILL, turn);
  give_up(decode_, HANDOFF_TARGET_LOCAL, turn);
  if (!engine_changed_) {
    engine_changed_ = true;  // once, beside the second try for what is lost
    begin_anew(turn);
  } else {
    fail_asking(kMismatch, "The engine has changed while it was asked.", event.leg, turn);
  }
}

void SglangExchange::ask(std::uint32_t target, sdk::Turn& turn) {
  const CallHeaders headers(request_, /*has_body=*/false);
  sdk::Leg leg;
  leg.id = ++last_leg_;
  leg.role = HANDOFF_ROLE_AUXILIARY;
  leg.target = target;
  leg.reply = HANDOFF_REPLY_COLLECT;
  leg.flags = HANDOFF_LEG_MAY_RESEND | HANDOFF_LEG_NO_CLIENT_HEADERS;
  leg.reply_limit = kLargestInfo;
  leg.method = "GET";
  leg.path = kPath;
  leg.name = "server_info";
  leg.headers = headers.fields();
  (target == HANDOFF_TARGET_PREFILL ? prefill_info_leg_ : decode_info_leg_) = leg.id;
  turn.start(leg);
}

void SglangExchange::on_info(const handoff_event& event, sdk::Turn& turn) {
  const bool of_prefill = prefill_info_leg_ != 0 && event.leg == prefill_info_leg_;
  const bool of_decode = decode_info_leg_ != 0 && event.leg == decode_info_leg_;
  if (!of_prefill && !of_decode) return;
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;
  const bool is_refused = done && (event.status == 401 || event.status == 403);
  if (!done || is_refused) {
    phase_ = Phase::settled;
    turn.fail_with_leg(event.leg);
    return;
  }
  if (event.status != 200) {
    fail_asking("auxiliary_upstream_error", "An engine does not tell its /server_info.", event.leg, turn);
    return;
  }
  auto info = read_server_info(shared_.host, sdk::view(event.body));
  const bool fits = of_prefill ? accept_prefill(std::move(info), event.now_ms, turn)
                               : accept_decode(std::move(info), event.now_ms, turn);
  if (!fits) return;
  (of_prefill ? prefill_info_leg_ : decode_info_leg_) = 0;
  if (prefill_info_leg_ != 0 || decode_info_leg_ != 0) return;
  if (!decode_info_.version.empty() && !prefill_info_.version.empty() &&
      decode_info_.version != prefill_info_.version) {
    shared_.host.warn("version_skew",
                      "prefill and decode run different SGLang versions; transfers between them may fail");
  }
  start_pair(turn);
}

bool SglangExchange::accept_prefill(EngineInfo info, std::uint64_t now_ms, sdk::Turn& turn) {
  if (info.mode != EngineMode::prefill) {
    fail_asking(kMismatch, "The engine at the prefill endpoint does not run in SGLang's prefill mode.",
                prefill_info_leg_, turn);
    return false;
  }
  if (info.bootstrap_port == 0) {
    fail_asking(kMismatch, "The prefill engine does not tell its bootstrap port.", prefill_info_leg_, turn);
    return false;
  }
  prefill_info_ = info;
  shared_.memory.remember(prefill_endpoint_, std::move(info), now_ms);
  return true;
}

bool SglangExchange::accept_decode(EngineInfo info, std::uint64_t now_ms, sdk::Turn& turn) {
  if (info.mode != EngineMode::decode) {
    fail_asking(kMismatch, "The local engine does not run in SGLang's decode mode.", decode_info_leg_, turn);
    return false;
  }
  decode_info_ = info;
  shared_.memory.remember(std::string(kLocal), std::move(info), now_ms);
  return true;
}

void SglangExchange::fail_asking(std::string_view code, std::string_view message, std::uint32_t leg,
                                 sdk::Turn& turn) {
  phase_ = Phase::settled;
  turn.fail({.status = 502, .code = code, .message = message, .leg = leg});
}

}  // namespace handoff::sglang
