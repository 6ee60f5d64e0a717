// vLLM with one of its KV connectors: the side channel, the connector, and the routes of engine_routes.cpp.
#include <memory>
#include <optional>

#include "kv_connector.hpp"
#include "kv_params.hpp"
#include "personality.hpp"
#include "side_channel.hpp"

namespace handoff::mock {
namespace {

class VllmPersonality : public Personality {
 public:
  explicit VllmPersonality(Services& services)
      : services_(services),
        side_channel_(services.engine, services.config.bind, services.config.side_channel_port),
        connector_(make_kv_connector(services, side_channel_)) {
    services.engine.side_channel_port = side_channel_.port();
  }

  void start() override {
    side_channel_.start();
    connector_->start();
  }
  void close() override {
    side_channel_.close();
    connector_->close();
  }

  std::string peer_address() const override { return side_channel_.address(); }

  std::string printed_ports() const override { return connector_->printed_ports(); }

  std::string role() const override { return role_name(services_.config.role); }

  Leg leg_of(const Json& body) const override { return handoff::mock::leg_of(body, services_.config); }
  Awaitable<void> serve(Exchange& exchange) override { return serve_engine_route(exchange, *connector_); }
  Awaitable<void> serve_peer(Exchange& exchange) override { return connector_->serve_peer(exchange); }

  std::variant<ApiRequest, PlainAnswer> expected(const std::string& path, const Json& body) const override {
    const auto api = api_of(path);
    if (!api) return PlainAnswer{400, R"({"error":"unknown path"})"};
    auto parsed = parse_api_request(*api, body, services_.config);
    if (const ApiError* error = std::get_if<ApiError>(&parsed))
      return PlainAnswer{error->status, error_body(*api, *error)};
    return std::get<ApiRequest>(std::move(parsed));
  }

  void add_state(Reply& state) const override {
    const Engine& engine = services_.engine;
    state["kv_connector"] = kv_connector_name(services_.config.vllm.connector);
    state["transfers"] = {{"asked", engine.gauges().takes_waiting},
                          {"loading", engine.gauges().loads_waiting},
                          {"orphaned", engine.gauges().loads_orphaned},
                          {"orphaned_ever", engine.counters().loads_orphaned}};
    connector_->add_state(state);
  }

 private:
  Services& services_;
  SideChannelServer side_channel_;
  std::unique_ptr<KvConnector> connector_;
};

}  // namespace

std::unique_ptr<Personality> make_vllm_personality(Services& services) {
  return std::make_unique<VllmPersonality>(services);
}

}  // namespace handoff::mock
