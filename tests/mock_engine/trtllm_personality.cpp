// trtllm-serve as a context or generation worker: its routes, and the channel between the two.
#include <utility>

#include "personality.hpp"
#include "side_channel.hpp"
#include "trtllm_generation.hpp"

namespace handoff::mock {
namespace {

std::string server_info(const Engine& engine) {
  Reply params;
  params["ctx_dp_rank"] = 0;
  params["ctx_info_endpoint"] = Reply::array({make_info_endpoint(engine)});
  Reply info;
  info["disaggregated_params"] = params;
  info["version"] = "1.3.0rc24+mock";
  return dump(info);
}

class TrtllmPersonality : public Personality {
 public:
  explicit TrtllmPersonality(Services& services)
      : services_(services),
        side_channel_(services.engine, services.config.bind, services.config.side_channel_port) {
    services.engine.side_channel_port = side_channel_.port();
  }

  void start() override { side_channel_.start(); }
  void close() override { side_channel_.close(); }

  std::string peer_address() const override { return side_channel_.address(); }

  std::string role() const override { return role_name(services_.config.role); }
  Leg leg_of(const Json& body) const override { return trtllm_leg_of(body); }

  Awaitable<void> serve(Exchange& exchange) override {
    const auto api = api_of(exchange.path);
    const std::string& method = exchange.request.method;
    if (api && (*api == Api::kChat || *api == Api::kCompletions)) {
      if (method == "POST") {
        co_await serve_trtllm_generation(exchange, state_, *api);
      } else {
        co_await answer_json(exchange, 405, R"({"detail":"Method Not Allowed"})");
      }
      co_return;
    }
    co_await serve_info(exchange);
  }

  std::variant<ApiRequest, PlainAnswer> expected(const std::string& path, const Json& body) const override {
    const auto api = api_of(path);
    if (!api) return PlainAnswer{400, R"({"error":"unknown path"})"};
    auto parsed = parse_trtllm_request(*api, body, services_.config);
    if (const ApiError* error = std::get_if<ApiError>(&parsed))
      return PlainAnswer{error->status, trtllm_error_body(*error)};
    return std::get<TrtllmRequest>(std::move(parsed)).request;
  }

  void add_state(Reply& state) const override {
    state["duplicate_ids"] = state_.duplicate_ids;
    state["low_ids"] = state_.low_ids;
    state["unsigned_requests"] = state_.unsigned_requests;
    state["tokenized_again"] = state_.tokenized_again;
    state["cancelled_in_transfer"] = state_.cancelled_in_transfer;
    state["partner_missing"] = state_.partner_missing;
  }

  void reset_counters() override {
    state_.duplicate_ids = state_.low_ids = state_.unsigned_requests = 0;
    state_.tokenized_again = state_.cancelled_in_transfer = state_.partner_missing = 0;
  }

 private:
  Awaitable<void> serve_info(Exchange& exchange) {
    const std::string& path = exchange.path;
    if (path == "/server_info") {
      co_await sleep_for(exchange.plan.delay_before);
      co_await answer_json(exchange, 200, server_info(services_.engine));
    } else if (path == "/version") {
      co_await answer_json(exchange, 200, R"({"version":"1.3.0rc24+mock"})");
    } else if (path == "/metrics" || path == "/kv_cache_events") {
      co_await answer_json(exchange, 200, "[]");  // drained by reading; nothing is recorded
    } else if (path == "/health" || path == "/v1/models") {
      co_await serve_info_route(exchange);
    } else {
      co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
    }
  }

  Services& services_;
  SideChannelServer side_channel_;
  TrtllmState state_;
};

}  // namespace

std::unique_ptr<Personality> make_trtllm_personality(Services& services) {
  return std::make_unique<TrtllmPersonality>(services);
}

}  // namespace handoff::mock
