#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "epp/selection/load_ledger.hpp"
#include "epp/selection/selector_config.hpp"

namespace handoff::epp {

// Which rank a session's requests go to. A bounded table: session ids come from clients, so they may not be
// able to push out each other without bound. A full table in hard mode leaves new sessions unbound (their
// requests are routed as usual); in soft mode the session that was used least recently gives way.
//
// Owner: Partition, under its lock.
class SessionAffinity {
 public:
  explicit SessionAffinity(const AffinityConfig& config) : config_(config) {}

  // The live binding; does not prolong it.
  std::optional<WorkerRank> find(std::string_view session, SteadyTime now);

  // Binds (again) and starts the time to live anew. False when the table is full.
  bool bind(std::string_view session, WorkerRank rank, SteadyTime now);
  void end(std::string_view session);
  // Forgets every binding to the worker; linear, and workers leave rarely.
  void forget_worker(WorkerId worker);
  void drop_expired(SteadyTime now);

  std::size_t size() const { return sessions_.size(); }

 private:
  struct Session {
    std::string id;
    WorkerRank rank;
    SteadyTime expires;
  };
  using Order = std::list<Session>;  // least recently bound first; so also first to expire

  AffinityConfig config_;
  Order order_;
  std::unordered_map<std::string_view, Order::iterator> sessions_;  // keys live in order_
};

}  // namespace handoff::epp
