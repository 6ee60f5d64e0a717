#include "sglang_rendezvous.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <utility>

#include "http_ask.hpp"

namespace handoff::mock {
namespace {

// The check does not see uses within co_await.
using net::experimental::awaitable_operators::operator||;  // NOLINT(misc-unused-using-decls)

constexpr int kTopologyTries = 15;
std::string topology_text(const MockConfig& config, std::uint16_t http_port) {
  Reply out;
  out["attn_tp_size"] = 1;
  out["attn_cp_size"] = 1;
  out["dp_size"] = config.data_parallel_size;
  out["pp_size"] = 1;
  out["page_size"] = config.block_size;
  out["kv_cache_dtype"] = "auto";
  out["follow_bootstrap_room"] = true;
  out["enable_dsa_cache_layer_split"] = false;
  out["prefill_http_port"] = http_port;
  return dump(out);
}

std::string join_text(std::uint64_t room, std::uint64_t prompt_hash, std::optional<std::int64_t> rank) {
  Json out;
  out["room"] = std::to_string(room);
  out["prompt_hash"] = std::to_string(prompt_hash);
  if (rank) out["rank"] = *rank;
  return dump(out);
}

std::string delivered_text(const SglangHandover& handover) {
  return dump(Json{{"prompt_hash", std::to_string(handover.prompt_hash)},
                   {"cached_tokens", std::to_string(handover.cached_tokens)}});
}

Awaitable<bool> has_topology(Engine& engine, std::string host, std::uint16_t port) {
  const std::string request = http_request_text(
      "GET", "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1", "");
  for (int tries = 0; tries < kTopologyTries; ++tries) {
    if (tries > 0) co_await engine.wait_out(Clock::now() + engine.config().scaled(1.0));
    const auto reply = co_await ask_http(host, port, request);
    if (reply && reply->status == 200) co_return true;
  }
  co_return false;
}

std::optional<std::uint64_t> number_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return std::nullopt;
  return std::strtoull(found->get<std::string>().c_str(), nullptr, 10);
}

}  // namespace

bool SglangRendezvous::joined(std::uint64_t room, std::int64_t rank) const {
  const auto found = joins_.find(room);
  return found != joins_.end() && found->second->rank.value_or(rank) == rank;
}

bool SglangRendezvous::deliver(std::uint64_t room, const SglangHandover& handover) {
  const auto found = joins_.find(room);
  if (found == joins_.end()) return false;
  found->second->delivered = handover;
  engine_.notify();
  return true;
}

Awaitable<void> SglangRendezvous::serve_join(Exchange& exchange) {
  const auto body = parse_json(exchange.request.body);
  const auto room = body && body->is_object() ? number_in(*body, "room") : std::nullopt;
  if (!room) {
    co_await answer_json(exchange, 400, R"({"error":"need a room"})");
    co_return;
  }
  Join join;
  if (body->contains("rank")) join.rank = body->at("rank").get<std::int64_t>();
  // D may leave at any time: its coroutine ends, and with it the entry.
  struct Entry {
    SglangRendezvous& table;
    std::multimap<std::uint64_t, Join*>::iterator at;
    ~Entry() {
      table.joins_.erase(at);
      table.engine_.notify();
    }
  } entry{*this, joins_.emplace(*room, &join)};
  engine_.notify();
  while (!join.delivered) co_await engine_.changed().wait_until(Clock::now() + kForEver);
  co_await answer_json(exchange, 200, delivered_text(*join.delivered));
}

Awaitable<void> SglangRendezvous::serve(Exchange& exchange, std::uint16_t http_port) {
  const std::string& method = exchange.request.method;
  if (engine_.dead()) {
    co_await answer_json(exchange, 503, R"({"error":"dead"})");
  } else if (exchange.path == "/health" && method == "GET") {
    co_await exchange.writer.full(200, "text/plain", {}, "OK");
  } else if (exchange.path == "/route" && method == "GET") {
    co_await answer_json(exchange, 200, topology_text(engine_.config(), http_port));
  } else if (exchange.path == "/kv_transfer" && method == "POST") {
    co_await serve_join(exchange);
  } else {
    co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
  }
}

Awaitable<JoinResult> join_room(Engine& engine, std::string host, std::uint16_t port, std::uint64_t room,
                                std::uint64_t prompt_hash, std::optional<std::int64_t> prefill_rank) {
  const bool known = co_await has_topology(engine, host, port);
  if (!known) co_return JoinResult{JoinEnd::kNoHandshake, {}};
  std::string request = http_request_text("POST", "/kv_transfer", join_text(room, prompt_hash, prefill_rank));
  auto result = co_await (ask_http(host, port, std::move(request)) ||
                          engine.wait_out(Clock::now() + engine.config().scaled(300.0)));
  if (result.index() == 1) co_return JoinResult{JoinEnd::kTimedOut, {}};
  const std::optional<HttpReply> reply = std::get<0>(std::move(result));
  const auto body = reply && reply->status == 200 ? parse_json(reply->body) : std::nullopt;
  const auto hash = body && body->is_object() ? number_in(*body, "prompt_hash") : std::nullopt;
  if (!hash) {
    // P is gone: two heartbeats, 5 s apart, have to fail before D believes it.
    co_await engine.wait_out(Clock::now() + engine.config().scaled(10.0));
    co_return JoinResult{JoinEnd::kLost, {}};
  }
  const auto cached = number_in(*body, "cached_tokens").value_or(0);
  co_return JoinResult{JoinEnd::kDelivered, {*hash, static_cast<std::int64_t>(cached)}};
}

}  // namespace handoff::mock
