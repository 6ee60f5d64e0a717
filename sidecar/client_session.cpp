#include "sidecar/client_session.hpp"

#include <charconv>
#include <utility>

#include "sidecar/disaggregated_exchange.hpp"
#include "sidecar/fair_turn.hpp"
#include "sidecar/give_memory_back.hpp"
#include "sidecar/pass_through.hpp"
#include "sidecar/request_rules.hpp"

namespace handoff::sidecar {
namespace {

// A body of no known type is passed on as it comes, unless it is so small that it is simpler to have it.
constexpr std::size_t kSmallBody = 64 * 1024;
// Read at once while a head is looked for: what follows the head is copied to the body, so it should not be
// much.
constexpr std::size_t kHeadRead = 16 * 1024;

// For the first request of a connection that was made when the sidecar was about to stop listening.
constexpr milliseconds kFirstRequestTime{1000};

Answer plain(unsigned status, std::string body) {
  return {status, {{"content-type", "text/plain; charset=utf-8"}}, std::move(body)};
}

Answer readiness_answer(const Readiness& readiness) {
  if (readiness.ready()) return plain(200, "ready\n");
  return plain(503, readiness.draining() ? "draining\n" : "decode engine not healthy\n");
}

// Sending such a request twice to an engine does no harm.
bool is_idempotent(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "OPTIONS" || method == "PUT" || method == "DELETE";
}

}  // namespace

ClientSession::ClientSession(LoopServices& services, Socket socket, Surface surface, std::string id_prefix)
    : services_(services),
      client_(std::make_unique<ClientConnection>(services.deadlines, std::move(socket),
                                                 services.plan.config.read_timeout)),
      surface_(surface),
      id_prefix_(std::move(id_prefix)) {}

ClientSession::~ClientSession() {
  client_->unwatch();
  client_->close();
}

Awaitable<> ClientSession::run() {
  FairTurn turn;
  while (true) {
    const bool asked = co_await await_request();
    if (!asked) break;
    const bool again = co_await serve_one();
    if (!again) break;
    if (turn.is_over()) co_await let_others_run(client_->executor());
  }
  client_->close();
}

void ClientSession::drain() {
  draining_ = true;
  if (current_ == nullptr) client_->stop();
}

void ClientSession::force_end() {
  ending_ = true;
  drain();
  if (current_ != nullptr) current_->cancel(CancelReason::shutdown);
  client_->stop();
}

void ClientSession::abandon() {
  ending_ = true;
  draining_ = true;
  client_->abandon();
  if (current_ != nullptr) current_->cancel(CancelReason::client_gone);
}

Awaitable<bool> ClientSession::await_request() {
  if (ending_) co_return false;
  if (!client_->inbox.empty()) co_return true;
  give_memory_back(client_->inbox);
  auto event = ClientEvent::stopped;
  const auto& config = services_.plan.config;
  // Who has never asked anything is not known to be a client.
  const auto patience = asked_before_ ? config.client_idle_timeout
                                      : std::min(config.client_idle_timeout, config.client_header_timeout);
  if (!draining_) event = co_await client_->wait_for_bytes(patience);
  if (event == ClientEvent::stopped && !ending_) {
    // Draining. Who asked before it could know is answered, and is told by that answer that it is the last.
    client_->resume();
    if (client_->has_unread()) co_return true;
    if (!asked_before_) event = co_await client_->wait_for_bytes(kFirstRequestTime);
  }
  co_return event == ClientEvent::readable;
}

Awaitable<std::optional<http1::HeadStatus>> ClientSession::read_head(RequestContext& request) {
  const auto& config = services_.plan.config;
  const http1::HeadLimits limits{.bytes = config.max_header_bytes};
  const auto end = Clock::now() + config.client_header_timeout;
  auto& inbox = client_->inbox;
  bool look_at_inbox = !inbox.empty();
  while (true) {
    std::string_view data;
    if (look_at_inbox) {
      data = inbox;
    } else {
      const auto got = client_->try_read(services_.scratch.first(kHeadRead));
      if (got.status == IoStatus::ok) {
        data = {services_.scratch.data(), got.size};
        if (!inbox.empty()) {
          inbox.append(data);
          data = inbox;
        }
      } else if (got.status != IoStatus::would_block) {
        co_return std::nullopt;
      }
    }
    if (!data.empty()) {
      const auto parsed = request.parser.parse_head(data, limits, request.head);
      if (parsed.status == http1::HeadStatus::need_more) {
        if (data.data() != inbox.data()) inbox.assign(data);
      } else {
        if (data.data() == inbox.data()) {
          inbox.erase(0, parsed.consumed);
        } else {
          inbox.assign(data.substr(parsed.consumed));
        }
        co_return parsed.status;
      }
    }
    look_at_inbox = false;
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    auto event = ClientEvent::timed_out;
    if (left.count() > 0) event = co_await client_->wait_for_bytes(left);
    if (event == ClientEvent::timed_out && !inbox.empty()) co_return http1::HeadStatus::need_more;
    if (event != ClientEvent::readable) co_return std::nullopt;
  }
}

Awaitable<bool> ClientSession::serve_one() {
  auto request = services_.requests.take();
  asked_before_ = true;
  CancelSource cancel;
  current_ = &cancel;
  const auto sent_before = client_->bytes_sent();
  const auto status = co_await read_head(*request);
  if (!status) {  // nothing was asked
    current_ = nullptr;
    co_return false;
  }
  ResponseRelay relay(*client_, request->head, services_.draining);
  auto& record = request->record;
  begin_record(*request);
  unread_request_ = *status != http1::HeadStatus::complete;
  body_taken_ = false;
  switch (*status) {
    case http1::HeadStatus::complete:
      record.outcome = co_await handle(request, relay, cancel);
      break;
    case http1::HeadStatus::too_large:
      record.outcome = co_await refuse(*request, relay, SidecarError::request_head_too_large);
      break;
    case http1::HeadStatus::too_many_fields:
      record.outcome = co_await refuse(*request, relay, SidecarError::request_head_too_large,
                                       "The request has too many header lines.");
      break;
    case http1::HeadStatus::unsupported_version:
      record.outcome = co_await refuse(*request, relay, SidecarError::http_version_not_supported);
      break;
    case http1::HeadStatus::need_more:
      record.outcome = co_await refuse(*request, relay, SidecarError::pd_request_timeout,
                                       "The request head did not arrive in time.");
      break;
    case http1::HeadStatus::malformed:
      record.outcome = co_await refuse(*request, relay, SidecarError::bad_request);
      break;
  }
  client_->unwatch();
  current_ = nullptr;
  record.status = relay.status();
  record.bytes_out = client_->bytes_sent() - sent_before;
  finish_exchange(record, services_.counters);
  if (relay.keep_alive() && !client_->gone()) co_return true;
  if (client_->is_open() && !client_->gone() && (unread_request_ || !relay.complete())) {
    co_await client_->linger_and_close(services_.scratch);
  }
  co_return false;
}

void ClientSession::begin_record(RequestContext& request) {
  auto& record = request.record;
  record.method = request.head.method;
  if (const auto* id = request.head.find(HeaderClass::x_request_id); id != nullptr && !id->value.empty()) {
    record.request_id = id->value;
    return;
  }
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof(digits), ++requests_, 16).ptr;
  record.request_id.reserve(id_prefix_.size() + 20);
  record.request_id = id_prefix_;
  record.request_id.append(digits, end);
}

Awaitable<ExchangeOutcome> ClientSession::answer_locally(RequestContext& request, ResponseRelay& relay,
                                                         const Answer& answer) {
  const auto& head = request.head;
  if (head.has_body() && !body_taken_ && !unread_request_) {
    auto& inbox = client_->inbox;
    if (!head.chunked && head.content_length.value_or(0) <= inbox.size()) {
      inbox.erase(0, static_cast<std::size_t>(*head.content_length));  // it came along: just skip it
    } else {
      unread_request_ = true;
    }
  }
  if (unread_request_) relay.forbid_keep_alive();
  const auto end = co_await relay.send(answer);
  co_return end == RelayEnd::complete ? ExchangeOutcome::answered : ExchangeOutcome::client_gone;
}

Awaitable<ExchangeOutcome> ClientSession::refuse(RequestContext& request, ResponseRelay& relay,
                                                 SidecarError error, std::string_view message,
                                                 std::optional<std::string_view> param) {
  const auto& row = row_of(error);
  request.record.mode = ExchangeMode::refused;
  request.record.error_code = row.code;
  const auto answer = error_answer(error, row.status, message.empty() ? row.message : message, param);
  co_return co_await answer_locally(request, relay, answer);
}

Awaitable<std::optional<ExchangeOutcome>> ClientSession::take_body(RequestContext& request,
                                                                   ResponseRelay& relay, bool guarded) {
  const auto& config = services_.plan.config;
  const auto& head = request.head;
  if (!head.has_body()) co_return std::nullopt;
  const bool looked_at = guarded || (head.method == "POST" && services_.plan.backend && may_be_json(head));
  const bool small = !head.chunked && *head.content_length <= kSmallBody;
  if (!looked_at && !small) {
    request.body_is_whole = false;
    co_return std::nullopt;
  }
  const auto end = co_await read_body(*client_, request.parser, head, config.max_request_bytes,
                                      config.client_body_timeout, services_.scratch, request.body);
  request.record.bytes_in = request.body.size();
  body_taken_ = end == BodyReadEnd::complete;
  if (body_taken_) co_return std::nullopt;
  unread_request_ = true;
  switch (end) {
    case BodyReadEnd::over_limit:
      if (guarded) co_return co_await refuse(request, relay, SidecarError::pd_request_too_large);
      unread_request_ = false;
      request.body_is_whole = false;
      co_return std::nullopt;
    case BodyReadEnd::timed_out:
      co_return co_await refuse(request, relay, SidecarError::pd_request_timeout);
    case BodyReadEnd::overloaded:
      co_return co_await refuse(request, relay, SidecarError::sidecar_overloaded);
    case BodyReadEnd::malformed:
      co_return co_await refuse(request, relay, SidecarError::bad_request,
                                "The request body is framed wrongly.");
    default:
      if (draining_) co_return co_await refuse(request, relay, SidecarError::request_cancelled);
      co_return ExchangeOutcome::client_gone;
  }
}

Awaitable<ExchangeOutcome> ClientSession::handle(const std::shared_ptr<RequestContext>& shared,
                                                 ResponseRelay& relay, CancelSource& cancel) {
  auto& request = *shared;
  const auto& plan = services_.plan;
  auto route = classify_route(plan, request);
  request.record.path = request.path;
  if (const auto refusal = check_head(request.head)) {
    co_return co_await refuse(request, relay, refusal->error, refusal->message);
  }
  if (surface_ == Surface::admin) {
    request.record.mode = ExchangeMode::local;
    request.record.is_probe = true;
    auto answer = plain(404, "not found: this port serves /livez and /readyz\n");
    if (request.path == "/livez") answer = plain(200, "alive\n");
    if (request.path == "/readyz") answer = readiness_answer(services_.readiness);
    co_return co_await answer_locally(request, relay, answer);
  }
  if (route == RouteKind::local_health || route == RouteKind::local_ready) {
    request.record.mode = ExchangeMode::local;
    request.record.is_probe = true;
    const auto answer =
        route == RouteKind::local_health ? plain(200, "alive\n") : readiness_answer(services_.readiness);
    co_return co_await answer_locally(request, relay, answer);
  }
  if (route == RouteKind::generation) {
    if (const auto refusal = read_prefill_hint(plan, request)) {
      co_return co_await refuse(request, relay, refusal->error, refusal->message);
    }
  }
  const bool guarded = plan.backend && (route == RouteKind::generation || route == RouteKind::disguised);
  const auto ended = co_await take_body(request, relay, guarded);
  if (ended) co_return *ended;
  const bool scanned = guarded || (request.body_is_whole && request.head.method == "POST" && plan.backend &&
                                   may_be_json(request.head));
  if (scanned) {
    if (const auto refusal = check_body(plan, request, guarded)) {
      co_return co_await refuse(request, relay, refusal->error, refusal->message, refusal->param);
    }
  }

  client_->watch([&cancel] { cancel.cancel(CancelReason::client_gone); });
  if (plan.backend && route == RouteKind::generation) {
    std::shared_ptr<DisaggregatedExchange> exchange(
        new DisaggregatedExchange(services_, shared, *client_, relay, cancel));
    co_return co_await exchange->run();
  }
  request.record.mode = ExchangeMode::pass_through;
  const bool may_resend = is_idempotent(request.head.method) || route != RouteKind::other;
  const PassThroughOptions options{.may_resend = may_resend};
  const auto outcome = co_await pass_through(services_, request, *client_, relay, cancel, options);
  if (!request.body_is_whole && !relay.keep_alive()) unread_request_ = true;
  co_return outcome;
}

}  // namespace handoff::sidecar
