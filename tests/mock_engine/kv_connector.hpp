// What one KV connector does with the requests of its engine: where decode gets the prompt's KV from, and
// what prefill keeps for it. One file per connector (`kv_*_connector.cpp`); README says what each punishes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answers.hpp"
#include "engine_place.hpp"
#include "exchange.hpp"
#include "side_channel.hpp"

namespace handoff::mock {

// A request that the scheduler gets. Everything outlives the transfer.
struct KvRequest {
  const ApiRequest& request;
  std::string id;  // with the API's prefix, as the engine calls it before it adds its random digits
  std::int64_t rank = 0;
  EnginePlace& place;
};

enum class LoadResult {
  kReady,
  kFailed,           // the engine was told to fail rather than to compute it again
  kTooLittleCached,  // the request's own threshold ends it
  kEngineDead
};

struct KvLoad {
  LoadResult result = LoadResult::kReady;
  AnswerKind kind = AnswerKind::kRight;
  std::vector<std::int64_t> tokens;  // by prompt: its first ones, so many, came from outside
};

// The connector's share in one request, called in this order. Lives in EngineRun; its destructor settles what
// is open, so that an abandoned request tells whom it has to tell, once.
class KvTransfer {
 public:
  virtual ~KvTransfer() = default;
  // Why the engine ends when the scheduler sees this. `all_cached`: nothing is left to load.
  virtual std::optional<std::string> fatal(bool all_cached);
  // The scheduler has it. It may wait for room now.
  virtual void admitted() {}
  // It has blocks.
  virtual Awaitable<KvLoad> load();
  // The prompts are computed, or loaded.
  virtual void computed() {}
  // The answers are out. What the reply says of the handoff; null: nothing.
  virtual Reply finish(const std::vector<Completion>& answers);
};

// Owned by the personality; lives as long as the io_context and is used from its single thread only.
class KvConnector {
 public:
  virtual ~KvConnector() = default;
  virtual void start() {}
  // The process is gone: RST.
  virtual void close() {}
  // Appended to the first line of output, with a leading space.
  virtual std::string printed_ports() const { return {}; }
  virtual std::unique_ptr<KvTransfer> begin(KvRequest request) = 0;
  // A decode request that ended before the scheduler saw it.
  virtual void rejected(Api api, const Json& body);
  // A request on a listener of the connector's own.
  virtual Awaitable<void> serve_peer(Exchange& exchange);
  // Adds to /mock/state what only this connector counts.
  virtual void add_state(Reply& state) const;
};

std::unique_ptr<KvConnector> make_kv_connector(Services& services, SideChannelServer& side_channel);

// One maker per kind, each in the connector's own file.
std::unique_ptr<KvConnector> make_nixl_connector(Services& services);
std::unique_ptr<KvConnector> make_nixl_push_connector(Services& services, SideChannelServer& side_channel);
std::unique_ptr<KvConnector> make_mooncake_connector(Services& services, SideChannelServer& side_channel);
std::unique_ptr<KvConnector> make_shared_storage_connector(Services& services);
std::unique_ptr<KvConnector> make_offloading_connector(Services& services, SideChannelServer& side_channel);

// What a load that ended like this is worth, counted: everything, nothing (the prompt is computed again, or
// the request fails, as --kv-load-failure-policy says), or the wrong blocks.
KvLoad weigh_load(Engine& engine, const ApiRequest& request, PullOutcome outcome);

// The blocks of one finished prompt, which change hands from the request to a lease.
LeaseTable::Lease lease_prompt(const KvRequest& request, const Completion& answer, std::size_t held);

}  // namespace handoff::mock
