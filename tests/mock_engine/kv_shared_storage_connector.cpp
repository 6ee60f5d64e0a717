// A connector that keeps KV in a store of all engines, as LMCache's: requests say nothing of it. P stores
// what it has computed, D looks its prompt up. With `cache_hit_threshold` a request ends where too little of
// its prompt was found.
#include <algorithm>
#include <utility>

#include "kv_connector.hpp"
#include "kv_store.hpp"

namespace handoff::mock {
namespace {

struct StoreCounters {
  std::int64_t stored = 0, found = 0, missed = 0, gave_up = 0;  // prompts; requests
};

std::string salt_of(const ApiRequest& request) {
  const auto salt = request.body.find("cache_salt");
  return salt != request.body.end() && salt->is_string() ? salt->get<std::string>() : std::string();
}

class StoreTransfer : public KvTransfer {
 public:
  StoreTransfer(Engine& engine, KvStore& store, StoreCounters& counters, KvRequest request)
      : engine_(engine), store_(store), counters_(counters), request_(std::move(request)) {}

  Awaitable<KvLoad> load() override {
    KvLoad out;
    const ApiRequest& request = request_.request;
    std::int64_t have = 0;
    bool any = false;
    for (std::size_t prompt = 0; prompt < request.prompts.size(); ++prompt) {
      const std::int64_t found = store_.find(request.prompts[prompt], salt_of(request));
      out.tokens.push_back(found);
      have += std::max(found, request_.place.cached_tokens(prompt));
      any = any || found > 0;
      ++(found > 0 ? counters_.found : counters_.missed);
    }
    const auto all = static_cast<double>(request.prompt_tokens());
    if (request.cache_hit_threshold && static_cast<double>(have) < *request.cache_hit_threshold * all) {
      ++counters_.gave_up;
      out.result = LoadResult::kTooLittleCached;
    } else if (any) {
      co_await sleep_for(engine_.config().kv_load);
    }
    co_return out;
  }

  void computed() override {
    if (engine_.config().role == Role::kConsumer) return;  // consumers save nothing
    for (const Tokens& prompt : request_.request.prompts) {
      store_.put(prompt, salt_of(request_.request));
      ++counters_.stored;
    }
  }

 private:
  Engine& engine_;
  KvStore& store_;
  StoreCounters& counters_;
  KvRequest request_;
};

class SharedStorageConnector : public KvConnector {
 public:
  explicit SharedStorageConnector(Services& services)
      : engine_(services.engine), store_(services.config.vllm.storage_path, services.config.block_size) {}

  std::unique_ptr<KvTransfer> begin(KvRequest request) override {
    return std::make_unique<StoreTransfer>(engine_, store_, counters_, std::move(request));
  }

  void add_state(Reply& state) const override {
    state["shared_storage"] = {{"stored", counters_.stored},
                               {"found", counters_.found},
                               {"missed", counters_.missed},
                               {"gave_up", counters_.gave_up}};
  }

 private:
  Engine& engine_;
  KvStore store_;
  StoreCounters counters_;
};

}  // namespace

std::unique_ptr<KvConnector> make_shared_storage_connector(Services& services) {
  return std::make_unique<SharedStorageConnector>(services);
}

}  // namespace handoff::mock
