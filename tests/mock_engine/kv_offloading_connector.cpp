// OffloadingConnector with a P2P tier: P parks the prompt's full blocks in host memory under a name, D
// fetches them. A fetch that fails is a cache miss: D computes the prompt itself.
#include <utility>

#include "json_member.hpp"
#include "kv_connector.hpp"

namespace handoff::mock {
namespace {

constexpr double kParkedTimeout = 60;  // of blocks that nobody asks for
constexpr double kLoadTimeout = 30;    // of D, while P does not have them yet

// The member of the parameters that says what the remote party is.
Json part_of(const ApiRequest& request, const char* name) {
  const Json part = request.kv_params.is_object() ? request.kv_params.value(name, Json()) : Json();
  return part.is_object() ? part : Json::object();
}

class OffloadingPrefill : public KvTransfer {
 public:
  OffloadingPrefill(Engine& engine, KvRequest request) : engine_(engine), request_(std::move(request)) {}

  Reply finish(const std::vector<Completion>& answers) override {
    const std::string name = text_of(part_of(request_.request, "remote_decoder"), "kv_request_id");
    if (name.empty() || answers.empty() || engine_.leases().is_live(name)) return nullptr;
    LeaseTable::Lease copy;  // in host memory: the engine's own blocks are free at once
    copy.prompt_hash = hash_text(request_.request.prompt_texts.front());
    engine_.pin(name, std::move(copy), engine_.config().scaled(kParkedTimeout));
    return nullptr;
  }

 private:
  Engine& engine_;
  KvRequest request_;
};

class OffloadingDecode : public KvTransfer {
 public:
  OffloadingDecode(Engine& engine, KvRequest request) : engine_(engine), request_(std::move(request)) {}

  Awaitable<KvLoad> load() override {
    KvLoad out;
    const std::optional<TakeRequest> fetch = wanted();
    if (!fetch) {
      ++engine_.counters().recomputed;
      co_return out;
    }
    co_await sleep_for(engine_.config().kv_load);
    const PullOutcome outcome = co_await take_blocks(engine_, *fetch);
    ++engine_.counters().pulls[outcome];
    if (outcome != PullOutcome::kFresh) {
      ++engine_.counters().recomputed;
      co_return out;
    }
    const auto size = static_cast<std::int64_t>(request_.request.prompts.front().size());
    out.tokens.push_back((size - 1) / request_.place.block_size() * request_.place.block_size());
    co_return out;
  }

 private:
  std::optional<TakeRequest> wanted() const {
    const Json part = part_of(request_.request, "remote_prefiller");
    const Json port = part.value("remote_port", Json());
    TakeRequest out;
    out.host = text_of(part, "remote_host");
    out.name = text_of(part, "kv_request_id");
    const std::int64_t number = port.is_number_integer() ? port.get<std::int64_t>() : 0;
    if (out.host.empty() || out.name.empty() || number < 1 || number > 65535) return std::nullopt;
    out.port = static_cast<std::uint16_t>(number);
    out.prompt_hash = hash_text(request_.request.prompt_texts.front());
    out.wait = engine_.config().scaled(kLoadTimeout);
    return out;
  }

  Engine& engine_;
  KvRequest request_;
};

class OffloadingConnector : public KvConnector {
 public:
  OffloadingConnector(Engine& engine, SideChannelServer& side_channel) : engine_(engine) {
    side_channel.serve_takes([this](const std::string&, const std::string& name) {
      return engine_.leases().is_live(name) ? std::optional(name) : std::nullopt;
    });
  }

  std::unique_ptr<KvTransfer> begin(KvRequest request) override {
    switch (request.request.leg) {
      case Leg::kPrefill:
        return std::make_unique<OffloadingPrefill>(engine_, std::move(request));
      case Leg::kDecode:
        return std::make_unique<OffloadingDecode>(engine_, std::move(request));
      case Leg::kPlain:
        break;
    }
    return std::make_unique<KvTransfer>();
  }

 private:
  Engine& engine_;
};

}  // namespace

std::unique_ptr<KvConnector> make_offloading_connector(Services& services, SideChannelServer& side_channel) {
  return std::make_unique<OffloadingConnector>(services.engine, side_channel);
}

}  // namespace handoff::mock
