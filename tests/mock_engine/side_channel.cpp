#include "side_channel.hpp"

#include "http_listener.hpp"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>

namespace handoff::mock {
namespace {

// The check does not see uses within co_await.
using net::experimental::awaitable_operators::operator||;  // NOLINT(misc-unused-using-decls)

constexpr std::size_t kMaxLine = 64 * 1024 * 1024;
constexpr std::chrono::microseconds kNoLimit = std::chrono::hours(24);
// In the past, so that a wait which starts after the stop ends at once.
constexpr Clock::time_point kStopped = Clock::time_point::min();

// One question, one answer; nullopt when the other side cannot be reached or says nothing sensible.
Awaitable<std::optional<Json>> exchange(std::string host, std::uint16_t port, std::string line) {
  const auto executor = co_await net::this_coro::executor;
  tcp::socket socket(executor);
  ErrorCode not_numeric;
  const auto address = net::ip::make_address(host, not_numeric);
  if (!not_numeric) {
    auto [connect_error] = co_await socket.async_connect(tcp::endpoint(address, port), kTuple);
    if (connect_error) co_return std::nullopt;
  } else {
    tcp::resolver resolver(executor);
    auto [resolve_error, found] = co_await resolver.async_resolve(host, std::to_string(port), kTuple);
    if (resolve_error) co_return std::nullopt;
    auto [connect_error, endpoint] = co_await net::async_connect(socket, found, kTuple);
    if (connect_error) co_return std::nullopt;
  }
  line += '\n';
  auto [write_error, written] = co_await net::async_write(socket, net::buffer(line), kTuple);
  if (write_error) co_return std::nullopt;
  std::string reply;
  auto [read_error, size] =
      co_await net::async_read_until(socket, net::dynamic_buffer(reply, kMaxLine), '\n', kTuple);
  if (read_error) co_return std::nullopt;
  co_return parse_json(reply);
}

// Messages are spelled in plain functions: GCC 12 cannot keep the initializer lists of JSON objects in a
// coroutine frame.
std::string release_text(const RemoteLease& lease) {
  return dump(Json{{"op", "release"}, {"request_id", lease.request_id}});
}

std::string connector_of(const Engine& engine) {
  return kv_connector_name(engine.config().vllm.connector);
}

std::string pull_text(const Engine& engine, const RemoteLease& lease, const Json& block_ids,
                      std::uint64_t prompt_hash) {
  return dump(Json{{"op", "pull"},
                   {"connector", connector_of(engine)},
                   {"engine_id", lease.engine_id},
                   {"request_id", lease.request_id},
                   {"block_ids", block_ids},
                   {"prompt_hash", std::to_string(prompt_hash)}});
}

std::string take_text(const Engine& engine, const TakeRequest& request, const char* op) {
  Json message{{"op", op},
               {"connector", connector_of(engine)},
               {"engine_id", request.engine_id},
               {"name", request.name},
               {"prompt_hash", std::to_string(request.prompt_hash)}};
  if (request.wait) message["wait_us"] = request.wait->count();
  return dump(message);
}

std::string outcome_text(PullOutcome outcome) {
  return dump(Json{{"outcome", pull_outcome_name(outcome)}});
}

std::string heartbeat_text(const RemoteLease& lease) {
  return dump(Json{{"op", "heartbeat"}, {"request_ids", Json::array({lease.request_id})}});
}

Awaitable<std::optional<Json>> exchange_within(RemoteLease lease, std::string message,
                                               std::chrono::microseconds limit) {
  auto result = co_await (exchange(lease.host, lease.port, std::move(message)) || sleep_for(limit));
  if (result.index() == 1) co_return std::nullopt;
  co_return std::get<0>(std::move(result));
}

// vLLM's handshake waits five seconds.
std::chrono::microseconds exchange_limit(const Engine& engine) {
  return std::max<std::chrono::microseconds>(engine.config().heartbeat_interval(),
                                             std::chrono::milliseconds(500));
}

PullOutcome outcome_from(const std::optional<Json>& reply) {
  if (!reply || !reply->is_object()) return PullOutcome::kUnreachable;
  const std::string name = reply->value("outcome", "");
  for (const PullOutcome outcome :
       {PullOutcome::kFresh, PullOutcome::kUnknown, PullOutcome::kConsumed, PullOutcome::kExpired,
        PullOutcome::kForeign, PullOutcome::kMismatch, PullOutcome::kTimedOut}) {
    if (name == pull_outcome_name(outcome)) return outcome;
  }
  return PullOutcome::kUnreachable;
}

Awaitable<void> release_later(Engine& engine, RemoteLease lease) {
  co_await exchange_within(lease, release_text(lease), exchange_limit(engine));
}

Awaitable<void> heartbeat_loop(Engine& engine, RemoteLease lease, std::shared_ptr<net::steady_timer> pace) {
  const std::string text = heartbeat_text(lease);
  while (true) {
    auto [stopped] = co_await pace->async_wait(kTuple);
    if (stopped || pace->expiry() == kStopped) co_return;
    // Before the exchange: its end must not move a stop that came meanwhile.
    pace->expires_after(engine.config().heartbeat_interval());
    ++engine.counters().heartbeats_sent;
    co_await exchange_within(lease, text, exchange_limit(engine));
  }
}

}  // namespace

SideChannelServer::SideChannelServer(Engine& engine, const std::string& bind, std::uint16_t port)
    : engine_(engine), acceptor_(engine.io(), tcp::endpoint(net::ip::make_address(bind), port)) {}

void SideChannelServer::start() {
  spawn(engine_.io(), accept_loop(), "side channel accept");
}

std::string SideChannelServer::address() const {
  return printed(acceptor_.local_endpoint());
}

void SideChannelServer::close() {
  ErrorCode ignored;
  acceptor_.close(ignored);
  for (tcp::socket* socket : open_) {
    socket->set_option(net::socket_base::linger(true, 0), ignored);
    socket->close(ignored);
  }
}

Awaitable<void> SideChannelServer::accept_loop() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kTuple);
    if (error == net::error::operation_aborted || error == net::error::bad_descriptor) co_return;
    if (error) {
      // Out of descriptors: try again a little later instead of spinning.
      co_await sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    spawn(engine_.io(), serve(std::make_shared<tcp::socket>(std::move(socket))), "side channel");
  }
}

Awaitable<void> SideChannelServer::serve(std::shared_ptr<tcp::socket> socket) {
  open_.insert(socket.get());
  ++engine_.gauges().side_channel_connections;
  std::string buffer;
  while (true) {
    auto [read_error, size] =
        co_await net::async_read_until(*socket, net::dynamic_buffer(buffer, kMaxLine), '\n', kTuple);
    if (read_error) break;
    std::string reply = co_await answer(buffer.substr(0, size));
    buffer.erase(0, size);
    reply += '\n';
    auto [write_error, written] = co_await net::async_write(*socket, net::buffer(reply), kTuple);
    if (write_error) break;
  }
  --engine_.gauges().side_channel_connections;
  open_.erase(socket.get());
}

Awaitable<std::string> SideChannelServer::answer(std::string line) {
  const auto message = parse_json(line);
  if (!message || !message->is_object()) co_return R"({"error":"not an object"})";
  if (message->value("op", Json()) == "take") {
    std::string reply = co_await answer_take(*message);
    co_return reply;
  }
  co_return answer_now(*message);
}

bool SideChannelServer::is_for_us(const Json& message) const {
  // The offloading connector's peers know each other by address alone.
  const bool by_address = engine_.config().vllm.connector == KvConnectorKind::kOffloading;
  return message.value("connector", Json()) == connector_of(engine_) &&
         (by_address || engine_.owns_engine_id(message.value("engine_id", std::string())));
}

std::string SideChannelServer::answer_now(const Json& message) {
  try {
    const std::string op = message.value("op", "");
    if (op == "heartbeat") {
      for (const Json& id : message.at("request_ids")) engine_.extend(id.get<std::string>());
      return R"({"ok":true})";
    }
    const std::string request_id = message.value("request_id", "");
    if (op == "release") {
      ++engine_.counters().releases_received;
      const bool freed = engine_.leases().release(request_id);
      engine_.notify();
      return dump(Json{{"ok", freed}});
    }
    if (engine_.dead()) return R"({"error":"dead"})";
    if (op == "hello") return outcome_text(is_for_us(message) ? PullOutcome::kFresh : PullOutcome::kMismatch);
    if (op == "pull") {
      PullOutcome outcome = PullOutcome::kMismatch;
      if (is_for_us(message)) {
        const auto hash = std::stoull(message.value("prompt_hash", "0"));
        outcome = engine_.leases().pull(request_id, message.value("block_ids", Json()), hash, Clock::now());
      }
      engine_.notify();
      return outcome_text(outcome);
    }
  } catch (const std::exception&) {
    return R"({"error":"malformed message"})";
  }
  return R"({"error":"unknown op"})";
}

Awaitable<std::string> SideChannelServer::answer_take(Json message) {
  if (engine_.dead()) co_return R"({"error":"dead"})";
  if (!is_for_us(message)) co_return outcome_text(PullOutcome::kMismatch);
  const std::string engine_id = message.value("engine_id", std::string());
  const std::string name = message.value("name", std::string());
  const std::uint64_t hash = std::strtoull(message.value("prompt_hash", std::string()).c_str(), nullptr, 10);
  const bool has_limit = message.contains("wait_us");
  const auto wait = std::chrono::microseconds(message.value("wait_us", kNoLimit.count()));
  const auto until = Clock::now() + wait;
  // Undone by a destructor: the process may throw the coroutine away.
  struct Waiting {
    Engine& engine;
    explicit Waiting(Engine& owner) : engine(owner) {
      ++engine.gauges().takes_waiting;
      engine.notify();
    }
    ~Waiting() {
      --engine.gauges().takes_waiting;
      engine.notify();
    }
  } waiting(engine_);
  while (!engine_.dead()) {
    if (const auto lease = find_ ? find_(engine_id, name) : std::nullopt) {
      const PullOutcome outcome = engine_.leases().pull(*lease, Json(), hash, Clock::now());
      engine_.notify();
      co_return outcome_text(outcome);
    }
    if (has_limit && engine_.is_over(until)) co_return outcome_text(PullOutcome::kTimedOut);
    co_await engine_.changed().wait_until(until);
  }
  co_return R"({"error":"dead"})";
}

Awaitable<PullOutcome> pull_blocks(Engine& engine, RemoteLease lease, Json block_ids,
                                   std::uint64_t prompt_hash) {
  const auto reply = co_await exchange_within(lease, pull_text(engine, lease, block_ids, prompt_hash),
                                              exchange_limit(engine));
  co_return outcome_from(reply);
}

Awaitable<PullOutcome> take_blocks(Engine& engine, TakeRequest request) {
  // P's own time comes first.
  const auto limit = request.wait ? *request.wait + exchange_limit(engine) : kNoLimit;
  const RemoteLease at{request.host, request.port, {}, {}};
  const auto reply = co_await exchange_within(at, take_text(engine, request, "take"), limit);
  co_return outcome_from(reply);
}

Awaitable<PullOutcome> shake_hands(Engine& engine, TakeRequest request) {
  const RemoteLease at{request.host, request.port, {}, {}};
  const auto reply =
      co_await exchange_within(at, take_text(engine, request, "hello"), exchange_limit(engine));
  co_return outcome_from(reply);
}

void send_release(Engine& engine, const RemoteLease& lease) {
  ++engine.counters().releases_sent;
  spawn(engine.io(), release_later(engine, lease), "release");
}

HeartbeatSender::HeartbeatSender(Engine& engine, const RemoteLease& lease)
    : pace_(std::make_shared<net::steady_timer>(engine.io(), engine.config().heartbeat_interval())) {
  spawn(engine.io(), heartbeat_loop(engine, lease, pace_), "heartbeat");
}

HeartbeatSender::~HeartbeatSender() {
  pace_->expires_at(kStopped);
}

}  // namespace handoff::mock
