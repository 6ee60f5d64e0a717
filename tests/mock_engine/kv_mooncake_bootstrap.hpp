// Mooncake's bootstrap server: which engine serves which data-parallel rank, and where its workers listen.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "exchange.hpp"

namespace handoff::mock {

// P's end. Owned by the connector, single thread.
class MooncakeBootstrap {
 public:
  explicit MooncakeBootstrap(Engine& engine) : engine_(engine) {}

  // `POST /register`, as a worker does at its start. Empty, or why it is refused.
  std::string add_worker(const Json& worker);
  // Serves `GET /query` and `POST /register`.
  Awaitable<void> serve(Exchange& exchange);
  std::int64_t queries() const { return queries_; }
  std::int64_t workers() const { return workers_; }

 private:
  struct Rank {
    std::string engine_id;
    std::map<std::int64_t, std::map<std::int64_t, std::string>> addresses;  // by TP and PP rank
  };

  std::string table() const;

  Engine& engine_;
  std::map<std::int64_t, Rank> ranks_;
  std::int64_t workers_ = 0;
  std::int64_t queries_ = 0;
};

}  // namespace handoff::mock
