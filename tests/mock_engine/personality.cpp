#include "personality.hpp"

namespace handoff::mock {

Awaitable<void> Personality::serve_peer(Exchange& exchange) {
  co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
}

void Personality::add_state(Reply&) const {}

std::unique_ptr<Personality> make_personality(Services& services) {
  switch (services.config.engine) {
    case EngineKind::kVllm:
      return make_vllm_personality(services);
    case EngineKind::kSglang:
      return make_sglang_personality(services);
    case EngineKind::kTrtllm:
      return make_trtllm_personality(services);
  }
  return nullptr;
}

}  // namespace handoff::mock
