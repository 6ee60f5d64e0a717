#include "kv_mooncake_bootstrap.hpp"

namespace handoff::mock {

std::string MooncakeBootstrap::add_worker(const Json& worker) {
  if (!worker.is_object()) return "Input should be a valid dictionary";
  for (const char* name : {"dp_rank", "tp_rank", "pp_rank"}) {
    if (!worker.value(name, Json()).is_number_integer()) return std::string(name) + " should be an integer";
  }
  for (const char* name : {"engine_id", "addr"}) {
    if (!worker.value(name, Json()).is_string()) return std::string(name) + " should be a string";
  }
  const auto engine_id = worker.at("engine_id").get<std::string>();
  const auto [rank, fresh] = ranks_.try_emplace(worker.at("dp_rank").get<std::int64_t>());
  if (fresh) rank->second.engine_id = engine_id;
  if (rank->second.engine_id != engine_id) return "Engine ID mismatch";
  auto& stages = rank->second.addresses[worker.at("tp_rank").get<std::int64_t>()];
  const auto stage = worker.at("pp_rank").get<std::int64_t>();
  if (!stages.emplace(stage, worker.at("addr").get<std::string>()).second)
    return "Worker is already registered";
  ++workers_;
  return {};
}

std::string MooncakeBootstrap::table() const {
  Reply out = Reply::object();
  for (const auto& [number, rank] : ranks_) {
    Reply& entry = out[std::to_string(number)];
    entry["engine_id"] = rank.engine_id;
    for (const auto& [tensor, stages] : rank.addresses) {
      for (const auto& [stage, address] : stages)
        entry["worker_addr"][std::to_string(tensor)][std::to_string(stage)] = address;
    }
  }
  return dump(out);
}

Awaitable<void> MooncakeBootstrap::serve(Exchange& exchange) {
  const std::string& method = exchange.request.method;
  if (engine_.dead()) {
    co_await answer_json(exchange, 503, R"({"detail":"dead"})");
  } else if (exchange.path == "/query" && method == "GET") {
    ++queries_;
    engine_.notify();
    co_await answer_json(exchange, 200, table());
  } else if (exchange.path == "/register" && method == "POST") {
    const auto worker = parse_json(exchange.request.body);
    const std::string refused = worker ? add_worker(*worker) : "JSON decode error";
    const std::string body =
        refused.empty() ? dump(Reply{{"status", "ok"}}) : dump(Reply{{"detail", refused}});
    co_await answer_json(exchange, refused.empty() ? 200 : 400, body);
  } else {
    co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
  }
}

}  // namespace handoff::mock
