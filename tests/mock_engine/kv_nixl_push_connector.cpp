// NixlPushConnector: D registers its blocks with P, and P writes once it has the prompt and the registration.
// The two find each other by the request id, without the digits that each engine adds: by X-Request-Id.
#include <map>
#include <utility>

#include "handoff_params.hpp"
#include "kv_background_load.hpp"
#include "kv_nixl.hpp"

namespace handoff::mock {
namespace {

constexpr std::size_t kManyPinned = 65536;

// The registration and the wait for P's write. P keeps the registration whatever becomes of its own leg; D's
// watchdog only writes a line to its log. If P dies after the handshake nobody will ever know.
Awaitable<std::optional<PullOutcome>> register_with_p(Engine& engine, TakeRequest request) {
  const PullOutcome hands = co_await shake_hands(engine, request);
  if (hands != PullOutcome::kFresh) co_return hands;
  const PullOutcome written = co_await take_blocks(engine, request);
  if (written == PullOutcome::kUnreachable) co_return std::nullopt;
  co_return written;
}

class PushedDecode : public KvTransfer {
 public:
  PushedDecode(Engine& engine, KvRequest request)
      : engine_(engine), request_(std::move(request)), remote_(remote_lease(request_.request.kv_params)) {}
  ~PushedDecode() override {
    if (load_) {
      load_->abandon(request_.place.blocks());
    } else if (remote_ && !failed_ && !engine_.dead()) {
      send_release(engine_, *remote_);  // it was never scheduled
    }
  }

  std::optional<std::string> fatal(bool all_cached) override {
    if (all_cached) return std::nullopt;
    for (const char* name :
         {"remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id"}) {
      if (request_.request.kv_params.contains(name)) continue;
      failed_ = true;
      return std::string("decode request without ") + name;
    }
    return std::nullopt;
  }

  void admitted() override {
    if (remote_) heartbeats_.emplace(engine_, *remote_);
  }

  Awaitable<KvLoad> load() override {
    PullOutcome outcome = PullOutcome::kUnreachable;
    if (remote_) {
      co_await sleep_for(engine_.config().kv_load);
      load_.emplace(engine_, register_with_p(engine_, registration()), BackgroundLoad::Orphan::kLeaked);
      outcome = co_await load_->wait();
    }
    failed_ = true;  // nothing (more) to tell
    heartbeats_.reset();
    co_return weigh_load(engine_, request_.request, outcome);
  }

 private:
  TakeRequest registration() const {
    TakeRequest out;
    out.host = remote_->host;
    out.port = remote_->port;
    out.engine_id = remote_->engine_id;
    out.name = base_request_id(request_, 0);
    out.prompt_hash = hash_text(request_.request.prompt_texts.front());
    return out;
  }

  Engine& engine_;
  KvRequest request_;
  std::optional<RemoteLease> remote_;
  bool failed_ = false;
  std::optional<HeartbeatSender> heartbeats_;
  std::optional<BackgroundLoad> load_;
};

class NixlPushConnector : public KvConnector {
 public:
  NixlPushConnector(Engine& engine, SideChannelServer& side_channel) : engine_(engine) {
    on_pinned_ = [this](const std::string& base, const std::string& full) { remember(base, full); };
    side_channel.serve_takes([this](const std::string&, const std::string& name) { return find(name); });
  }

  std::unique_ptr<KvTransfer> begin(KvRequest request) override {
    switch (request.request.leg) {
      case Leg::kPrefill:
        return begin_nixl_prefill(engine_, std::move(request), on_pinned_);
      case Leg::kDecode:
        return std::make_unique<PushedDecode>(engine_, std::move(request));
      case Leg::kPlain:
        break;
    }
    return std::make_unique<KvTransfer>();
  }
  void rejected(Api, const Json& body) override { release_rejected_handoff(engine_, body); }

 private:
  void remember(const std::string& base, const std::string& full) {
    if (pinned_.size() >= kManyPinned)
      std::erase_if(pinned_, [this](const auto& entry) { return !engine_.leases().is_live(entry.second); });
    pinned_.emplace(base, full);
  }

  // Of several requests with one X-Request-Id any will do: whose prompt it is, nobody compares.
  std::optional<std::string> find(const std::string& base) {
    for (auto it = pinned_.find(base); it != pinned_.end() && it->first == base; it = pinned_.erase(it)) {
      if (engine_.leases().is_live(it->second)) return it->second;
    }
    return std::nullopt;
  }

  Engine& engine_;
  std::multimap<std::string, std::string> pinned_;
  OnPinned on_pinned_;
};

}  // namespace

std::unique_ptr<KvConnector> make_nixl_push_connector(Services& services, SideChannelServer& side_channel) {
  return std::make_unique<NixlPushConnector>(services.engine, side_channel);
}

}  // namespace handoff::mock
