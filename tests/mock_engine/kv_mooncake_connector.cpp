// MooncakeConnector: both legs run at once, D asks P for a transfer by its id, and P writes when its own leg
// is done. Whoever is first waits for the other.
#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "http_ask.hpp"
#include "http_listener.hpp"
#include "json_member.hpp"
#include "kv_background_load.hpp"
#include "kv_connector.hpp"
#include "kv_mooncake_bootstrap.hpp"

namespace handoff::mock {
namespace {

// The check does not see uses within co_await.
using net::experimental::awaitable_operators::operator||;  // NOLINT(misc-unused-using-decls)

constexpr double kAbortTimeout = 480;  // VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
constexpr double kReceiveTimeout = kAbortTimeout + 60;
constexpr double kQueryTimeout = 5;

struct Address {
  std::string host;
  std::uint16_t port = 0;
};

// `scheme://host:port`.
std::optional<Address> parse_address(const std::string& text, const std::string& scheme) {
  if (!text.starts_with(scheme)) return std::nullopt;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon <= scheme.size()) return std::nullopt;
  Address out;
  out.host = text.substr(scheme.size(), colon - scheme.size());
  if (out.host.starts_with('[') && out.host.ends_with(']'))
    out.host = out.host.substr(1, out.host.size() - 2);
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), out.port);
  if (error != std::errc() || end != text.data() + text.size() || out.port == 0) return std::nullopt;
  return out;
}

std::string lease_name(const std::string& engine_id, const std::string& transfer_id) {
  return engine_id + "/" + transfer_id;
}

// What D is told of a transfer.
struct Wanted {
  std::string engine_id;
  std::string bootstrap_address;
  std::string transfer_id;
  std::vector<std::uint64_t> prompts;  // hashes
};

// D's memory of engines, which is never corrected: a worker that is gone is asked until the time is over.
class MooncakeReceiver {
 public:
  explicit MooncakeReceiver(Engine& engine) : engine_(engine) {}

  Awaitable<std::optional<PullOutcome>> fetch(Wanted wanted) {
    const auto gives_up = Clock::now() + engine_.config().scaled(kReceiveTimeout);
    if (!agents_.contains(wanted.engine_id)) co_await learn(wanted.bootstrap_address);
    const auto agent = agents_.find(wanted.engine_id);
    if (agent == agents_.end()) co_return PullOutcome::kUnreachable;
    TakeRequest request;
    request.host = agent->second.host;
    request.port = agent->second.port;
    request.engine_id = wanted.engine_id;
    request.name = wanted.transfer_id;
    request.wait = engine_.config().scaled(kAbortTimeout);
    for (const std::uint64_t prompt : wanted.prompts) {
      request.prompt_hash = prompt;
      const PullOutcome outcome = co_await take_blocks(engine_, request);
      if (outcome == PullOutcome::kUnreachable || outcome == PullOutcome::kMismatch) {
        co_await engine_.wait_out(gives_up);
        co_return PullOutcome::kUnreachable;
      }
      if (outcome != PullOutcome::kFresh) co_return outcome;
    }
    co_return PullOutcome::kFresh;
  }

 private:
  Awaitable<void> learn(std::string bootstrap_address) {
    const auto at = parse_address(bootstrap_address, "http://");
    if (!at) co_return;
    // Scaled or not, long enough for a busy machine.
    const auto limit = std::max<std::chrono::microseconds>(engine_.config().scaled(kQueryTimeout),
                                                           std::chrono::milliseconds(500));
    auto asked =
        co_await (ask_http(at->host, at->port, http_request_text("GET", "/query", "")) || sleep_for(limit));
    if (asked.index() == 1) co_return;
    const std::optional<HttpReply> reply = std::get<0>(std::move(asked));
    const auto table = reply && reply->status == 200 ? parse_json(reply->body) : std::nullopt;
    if (table && table->is_object()) remember(*table);
  }

  void remember(const Json& table) {
    const Json::json_pointer first("/worker_addr/0/0");
    for (const auto& [rank, entry] : table.items()) {
      const auto address = parse_address(entry.value(first, std::string()), "tcp://");
      if (address) agents_[text_of(entry, "engine_id")] = *address;
    }
  }

  Engine& engine_;
  std::unordered_map<std::string, Address> agents_;
};

class MooncakePrefill : public KvTransfer {
 public:
  MooncakePrefill(Engine& engine, KvRequest request) : engine_(engine), request_(std::move(request)) {}

  std::optional<std::string> fatal(bool) override {
    if (engine_.config().role != Role::kConsumer) return std::nullopt;
    return "prefill request to a consumer";
  }

  Reply finish(const std::vector<Completion>& answers) override {
    const std::string transfer_id = text_of(request_.request.kv_params, "transfer_id");
    for (std::size_t i = 0; i < answers.size() && !transfer_id.empty(); ++i) {
      // Only what the token limit ended is handed over.
      if (answers[i].finish_reason != "length") continue;
      const std::string name = lease_name(engine_.engine_id(request_.rank), transfer_id);
      LeaseTable::Lease lease = lease_prompt(request_, answers[i], i);
      if (engine_.leases().is_live(
              name)) {  // the later one takes the entry of the first, whose blocks nobody frees
        engine_.gauges().leaked_blocks += static_cast<std::int64_t>(lease.blocks.size());
        continue;
      }
      engine_.pin(name, std::move(lease), engine_.config().scaled(kAbortTimeout));
    }
    return nullptr;
  }

 private:
  Engine& engine_;
  KvRequest request_;
};

class MooncakeDecode : public KvTransfer {
 public:
  MooncakeDecode(Engine& engine, MooncakeReceiver& receiver, KvRequest request, Wanted wanted)
      : engine_(engine), receiver_(receiver), request_(std::move(request)), wanted_(std::move(wanted)) {}
  ~MooncakeDecode() override {
    if (load_) {
      load_->abandon(request_.place.blocks());
    } else if (!settled_ && !engine_.dead()) {
      std::vector<BlockIds> none;  // never scheduled: P is asked, so that it frees what it has
      BackgroundLoad(engine_, receiver_.fetch(std::move(wanted_)), BackgroundLoad::Orphan::kHeld)
          .abandon(none);
    }
  }

  std::optional<std::string> fatal(bool) override {
    if (engine_.config().role != Role::kProducer) return std::nullopt;
    settled_ = true;
    return "decode request to a producer";
  }

  Awaitable<KvLoad> load() override {
    settled_ = true;
    for (const char* name : {"remote_engine_id", "remote_bootstrap_addr", "transfer_id"}) {
      if (!request_.request.kv_params.contains(name)) co_await hang();
    }
    co_await sleep_for(engine_.config().kv_load);
    load_.emplace(engine_, receiver_.fetch(wanted_), BackgroundLoad::Orphan::kHeld);
    const PullOutcome outcome = co_await load_->wait();
    co_return weigh_load(engine_, request_.request, outcome);
  }

 private:
  Awaitable<void> hang() {
    ++engine_.counters().hung_incomplete;
    request_.place.leak();
    request_.place.hang();
    while (true) co_await sleep_for(kForEver);
  }

  Engine& engine_;
  MooncakeReceiver& receiver_;
  KvRequest request_;
  Wanted wanted_;
  bool settled_ = false;
  std::optional<BackgroundLoad> load_;
};

class MooncakeConnector : public KvConnector {
 public:
  MooncakeConnector(Services& services, SideChannelServer& side_channel)
      : services_(services), bootstrap_(services.engine), receiver_(services.engine) {
    if (services.config.role == Role::kConsumer) return;
    listener_.emplace(services, services.config.bind, services.config.vllm.bootstrap_port, Door::kPeer);
    side_channel.serve_takes([this](const std::string& engine_id, const std::string& name) {
      const std::string lease = lease_name(engine_id, name);
      return services_.engine.leases().is_live(lease) ? std::optional(lease) : std::nullopt;
    });
  }

  void start() override {
    if (!listener_) return;
    const Engine& engine = services_.engine;
    const std::string& host = services_.config.side_channel_host;
    for (std::int64_t rank = 0; rank < services_.config.data_parallel_size; ++rank) {
      Json worker;
      worker["engine_id"] = engine.engine_id(rank);
      worker["dp_rank"] = rank;
      worker["tp_rank"] = 0;
      worker["pp_rank"] = 0;
      worker["addr"] = "tcp://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
                       std::to_string(engine.side_channel_port);
      bootstrap_.add_worker(worker);
    }
    listener_->start();
  }
  void close() override {
    if (listener_) listener_->close();
  }
  std::string printed_ports() const override {
    return listener_ ? " bootstrap=" + std::to_string(listener_->port()) : std::string();
  }

  std::unique_ptr<KvTransfer> begin(KvRequest request) override {
    Engine& engine = services_.engine;
    switch (request.request.leg) {
      case Leg::kPrefill:
        return std::make_unique<MooncakePrefill>(engine, std::move(request));
      case Leg::kDecode: {
        Wanted wanted = wanted_by(request.request.kv_params);
        for (const std::string& text : request.request.prompt_texts)
          wanted.prompts.push_back(hash_text(text));
        return std::make_unique<MooncakeDecode>(engine, receiver_, std::move(request), std::move(wanted));
      }
      case Leg::kPlain:
        break;
    }
    return std::make_unique<KvTransfer>();
  }

  void rejected(Api, const Json& body) override {
    const auto params = body.find("kv_transfer_params");
    if (params == body.end() || !params->is_object() || params->value("do_remote_prefill", Json()) != true)
      return;
    Wanted wanted = wanted_by(*params);
    if (wanted.transfer_id.empty()) return;
    wanted.prompts.push_back(0);
    std::vector<BlockIds> none;
    BackgroundLoad(services_.engine, receiver_.fetch(std::move(wanted)), BackgroundLoad::Orphan::kHeld)
        .abandon(none);
  }

  Awaitable<void> serve_peer(Exchange& exchange) override { return bootstrap_.serve(exchange); }

  void add_state(Reply& state) const override {
    state["mooncake"] = {{"queries", bootstrap_.queries()}, {"workers", bootstrap_.workers()}};
  }

 private:
  static Wanted wanted_by(const Json& params) {
    return {text_of(params, "remote_engine_id"),
            text_of(params, "remote_bootstrap_addr"),
            text_of(params, "transfer_id"),
            {}};
  }

  Services& services_;
  MooncakeBootstrap bootstrap_;
  MooncakeReceiver receiver_;
  std::optional<HttpListener> listener_;
};

}  // namespace

std::unique_ptr<KvConnector> make_mooncake_connector(Services& services, SideChannelServer& side_channel) {
  return std::make_unique<MooncakeConnector>(services, side_channel);
}

}  // namespace handoff::mock
