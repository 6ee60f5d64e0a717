// SGLang with prefill/decode disaggregation: the bootstrap port, and the routes of sglang_routes.cpp.
#include <optional>

#include "http_listener.hpp"
#include "personality.hpp"
#include "sglang_routes.hpp"

namespace handoff::mock {
namespace {

Reply state_of(const SglangCounters& counters, std::int64_t live, std::int64_t waiting) {
  Reply out;
  out["rooms"] = {{"live", live},
                  {"created", counters.rooms_created},
                  {"duplicate", counters.rooms_duplicate},
                  {"timed_out", counters.rooms_timed_out}};
  out["waiting_peers"] = waiting;
  out["aborts"] = {{"received", counters.aborts_received},
                   {"matched", counters.aborts_matched},
                   {"lost", counters.aborts_lost},
                   {"of_all", counters.aborts_of_all}};
  out["disconnects"] = counters.disconnects;
  out["missing_room"] = counters.missing_room;
  out["health_generations"] = counters.health_generations;
  out["ranks"] = Reply::object();
  for (const auto& [rank, count] : counters.ranks) out["ranks"][std::to_string(rank)] = count;
  return out;
}

class SglangPersonality : public Personality {
 public:
  explicit SglangPersonality(Services& services)
      : services_(services),
        bootstrap_(services, services.config.bind, services.config.sglang.bootstrap_port, Door::kPeer),
        rendezvous_(services.engine),
        scheduler_(services.engine, rendezvous_) {}

  void start() override {
    if (mode() == SglangMode::kPrefill) bootstrap_.start();
  }
  void close() override { bootstrap_.close(); }
  std::string peer_address() const override { return bootstrap_.address(); }
  std::string role() const override { return sglang_mode_name(mode()); }

  Leg leg_of(const Json& body) const override {
    if (mode() == SglangMode::kNull || !body.is_object()) return Leg::kPlain;
    const auto room = body.find("bootstrap_room");
    if (room == body.end() || room->is_null()) return Leg::kPlain;
    return mode() == SglangMode::kPrefill ? Leg::kPrefill : Leg::kDecode;
  }

  Awaitable<void> serve(Exchange& exchange) override {
    return serve_sglang_route(exchange, scheduler_, announced_port());
  }
  Awaitable<void> serve_peer(Exchange& exchange) override {
    return rendezvous_.serve(exchange, services_.config.port);
  }

  std::variant<ApiRequest, PlainAnswer> expected(const std::string& path, const Json& body) const override {
    const auto api = sglang_api_of(path);
    if (!api) return PlainAnswer{400, R"({"error":"unknown path"})"};
    Random ids(1);
    auto parsed = parse_sglang_request(*api, body, services_.config, ids);
    if (const ApiError* error = std::get_if<ApiError>(&parsed))
      return PlainAnswer{error->status, error->message};
    return std::get<SglangRequest>(std::move(parsed)).whole;
  }

  void add_state(Reply& state) const override {
    state["role"] = role();
    state["sglang"] = state_of(scheduler_.counters(), scheduler_.live_rooms(), rendezvous_.waiting());
  }
  void reset_counters() override { scheduler_.counters() = {}; }

 private:
  SglangMode mode() const { return services_.config.sglang.mode; }
  std::int64_t announced_port() const {
    const std::int64_t told = services_.config.sglang.announced_bootstrap_port;
    return told != 0 ? told : bootstrap_.port();
  }

  Services& services_;
  HttpListener bootstrap_;
  SglangRendezvous rendezvous_;
  SglangScheduler scheduler_;
};

}  // namespace

std::unique_ptr<Personality> make_sglang_personality(Services& services) {
  return std::make_unique<SglangPersonality>(services);
}

}  // namespace handoff::mock
