#include "kv_connector.hpp"

#include <utility>

namespace handoff::mock {
namespace {

// --role none: an engine without a connector.
class NoConnector : public KvConnector {
 public:
  std::unique_ptr<KvTransfer> begin(KvRequest) override { return std::make_unique<KvTransfer>(); }
};

}  // namespace

std::optional<std::string> KvTransfer::fatal(bool) {
  return std::nullopt;
}

Awaitable<KvLoad> KvTransfer::load() {
  co_return KvLoad{};
}

Reply KvTransfer::finish(const std::vector<Completion>&) {
  return nullptr;
}

void KvConnector::rejected(Api, const Json&) {}

void KvConnector::add_state(Reply&) const {}

Awaitable<void> KvConnector::serve_peer(Exchange& exchange) {
  co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
}

std::unique_ptr<KvConnector> make_kv_connector(Services& services, SideChannelServer& side_channel) {
  if (services.config.role == Role::kNone) return std::make_unique<NoConnector>();
  switch (services.config.vllm.connector) {
    case KvConnectorKind::kNixl:
      return make_nixl_connector(services);
    case KvConnectorKind::kNixlPush:
      return make_nixl_push_connector(services, side_channel);
    case KvConnectorKind::kMooncake:
      return make_mooncake_connector(services, side_channel);
    case KvConnectorKind::kSharedStorage:
      return make_shared_storage_connector(services);
    case KvConnectorKind::kOffloading:
      return make_offloading_connector(services, side_channel);
  }
  return std::make_unique<NoConnector>();
}

KvLoad weigh_load(Engine& engine, const ApiRequest& request, PullOutcome outcome) {
  Counters& counters = engine.counters();
  ++counters.pulls[outcome];
  KvLoad load;
  const auto take_all = [&] {
    for (const Tokens& prompt : request.prompts)
      load.tokens.push_back(static_cast<std::int64_t>(prompt.size()));
  };
  switch (outcome) {
    case PullOutcome::kFresh:
      take_all();
      return load;
    case PullOutcome::kUnknown:
      ++counters.recomputed;
      return load;
    case PullOutcome::kConsumed:
    case PullOutcome::kExpired:
    case PullOutcome::kForeign:
      ++counters.wrong_text;
      take_all();
      load.kind = AnswerKind::kWrongKv;
      return load;
    case PullOutcome::kMismatch:
    case PullOutcome::kTimedOut:
    case PullOutcome::kUnreachable:
      ++counters.kv_load_failures;
      if (engine.config().load_failure_policy == LoadFailurePolicy::kFail) {
        load.result = LoadResult::kFailed;
      } else {
        ++counters.recomputed;
      }
      return load;
  }
  return load;
}

LeaseTable::Lease lease_prompt(const KvRequest& request, const Completion& answer, std::size_t held) {
  const std::size_t prompt = answer.prompt;
  const std::int64_t size = request.place.block_size();
  const auto tokens = static_cast<std::int64_t>(request.request.prompts[prompt].size());
  const std::int64_t kept = (tokens + size - 1) / size;
  BlockIds& blocks = request.place.blocks()[held];
  LeaseTable::Lease lease;
  lease.blocks.assign(blocks.begin(), blocks.begin() + kept);
  blocks.erase(blocks.begin(), blocks.begin() + kept);
  lease.prompt_hash = hash_text(request.request.prompt_texts[prompt]);
  return lease;
}

}  // namespace handoff::mock
