// NixlConnector: P pins, D pulls.
#include <utility>

#include "handoff_params.hpp"
#include "kv_nixl.hpp"
#include "kv_params.hpp"

namespace handoff::mock {
namespace {
class Prefill : public KvTransfer {
 public:
  Prefill(Engine& engine, KvRequest request, const OnPinned& on_pinned)
      : engine_(engine), request_(std::move(request)), on_pinned_(on_pinned) {}

  Reply finish(const std::vector<Completion>& answers) override {
    const MockConfig& config = engine_.config();
    const bool pushes = config.vllm.connector == KvConnectorKind::kNixlPush;
    Reply first = nullptr;
    for (std::size_t i = 0; i < answers.size() && i < request_.place.blocks().size(); ++i) {
      const std::size_t prompt = answers[i].prompt;
      if (answers[i].finish_reason == "stop" && config.null_params_on_stop) continue;
      LeaseTable::Lease lease = lease_prompt(request_, answers[i], i);
      const Json block_ids = block_ids_json(config, lease.blocks);
      if (!pushes) lease.block_ids = block_ids;  // who pushes needs none from D
      const std::string base = base_request_id(request_, prompt);
      const std::string id = base + "-" + engine_.random().hex(8);
      const auto tokens = static_cast<std::int64_t>(request_.request.prompts[prompt].size());
      // Only the first prompt's handoff is told to anybody; the others wait for their leases to end.
      if (first.is_null()) first = make_handoff(engine_, id, block_ids, tokens, request_.rank);
      engine_.pin(id, std::move(lease));
      if (on_pinned_) on_pinned_(base, id);
    }
    return first;
  }

 private:
  Engine& engine_;
  KvRequest request_;
  const OnPinned& on_pinned_;
};

class PullingDecode : public KvTransfer {
 public:
  PullingDecode(Engine& engine, KvRequest request)
      : engine_(engine),
        request_(std::move(request)),
        verdict_(judge_handoff(request_.request)),
        remote_(remote_lease(request_.request.kv_params)),
        told_p_(!remote_.has_value()) {}
  ~PullingDecode() override {
    // A dead process tells nobody.
    if (!told_p_ && !engine_.dead()) send_release(engine_, *remote_);
  }

  std::optional<std::string> fatal(bool all_cached) override {
    if (verdict_ != HandoffVerdict::kKillsEngine || all_cached) return std::nullopt;
    told_p_ = true;
    return "decode request without remote_block_ids, or several prompts with one handoff";
  }

  void admitted() override {
    // D starts to renew the lease when its scheduler has the request, not earlier.
    if (remote_ && request_.request.kv_params.contains("tp_size")) heartbeats_.emplace(engine_, *remote_);
  }

  Awaitable<KvLoad> load() override {
    KvLoad out;
    switch (verdict_) {
      case HandoffVerdict::kHangs:
        co_await hang();
        co_return out;
      case HandoffVerdict::kConfusesEngine:
        ++engine_.counters().zero_token;
        out.kind = AnswerKind::kEmpty;
        co_return out;
      case HandoffVerdict::kUnreadable:
        told_p_ = true;
        co_return weigh_load(engine_, request_.request, PullOutcome::kUnreachable);
      case HandoffVerdict::kKillsEngine:  // everything is cached: the handoff is not looked at
        co_return out;
      case HandoffVerdict::kReadable:
        break;
    }
    out = co_await pull();
    heartbeats_.reset();
    co_return out;
  }

 private:
  Awaitable<void> hang() {
    ++engine_.counters().hung_incomplete;
    told_p_ = true;
    request_.place.leak();
    request_.place.hang();
    while (true) co_await sleep_for(kForEver);
  }

  Awaitable<KvLoad> pull() {
    KvLoad dead;
    dead.result = LoadResult::kEngineDead;
    co_await sleep_for(engine_.config().kv_load);
    if (engine_.dead() || !remote_) co_return dead;
    const std::uint64_t hash = hash_text(request_.request.prompt_texts.front());
    const Json block_ids = request_.request.kv_params.value("remote_block_ids", Json());
    const PullOutcome outcome = co_await pull_blocks(engine_, *remote_, block_ids, hash);
    told_p_ = true;
    co_return weigh_load(engine_, request_.request, outcome);
  }

  Engine& engine_;
  KvRequest request_;
  HandoffVerdict verdict_;
  std::optional<RemoteLease> remote_;
  bool told_p_;  // nothing (more) to tell
  std::optional<HeartbeatSender> heartbeats_;
};

class NixlConnector : public KvConnector {
 public:
  explicit NixlConnector(Engine& engine) : engine_(engine) {}

  std::unique_ptr<KvTransfer> begin(KvRequest request) override {
    switch (request.request.leg) {
      case Leg::kPrefill:
        return begin_nixl_prefill(engine_, std::move(request), nobody_);
      case Leg::kDecode:
        return std::make_unique<PullingDecode>(engine_, std::move(request));
      case Leg::kPlain:
        break;
    }
    return std::make_unique<KvTransfer>();
  }
  void rejected(Api, const Json& body) override { release_rejected_handoff(engine_, body); }

 private:
  Engine& engine_;
  OnPinned nobody_;
};

}  // namespace

std::unique_ptr<KvTransfer> begin_nixl_prefill(Engine& engine, KvRequest request, const OnPinned& on_pinned) {
  return std::make_unique<Prefill>(engine, std::move(request), on_pinned);
}

void release_rejected_handoff(Engine& engine, const Json& body) {
  if (leg_of(body, engine.config()) != Leg::kDecode) return;
  const auto params = body.find("kv_transfer_params");
  const auto lease = params == body.end() ? std::nullopt : remote_lease(*params);
  if (lease) send_release(engine, *lease);
}

std::string base_request_id(const KvRequest& request, std::size_t prompt) {
  return request.request.api == Api::kCompletions ? request.id + "-" + std::to_string(prompt) : request.id;
}

std::unique_ptr<KvConnector> make_nixl_connector(Services& services) {
  return std::make_unique<NixlConnector>(services.engine);
}

}  // namespace handoff::mock
