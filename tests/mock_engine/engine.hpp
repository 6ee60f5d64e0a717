// The state of one engine: blocks, leases, counters, and whether it is alive. No HTTP in here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api_request.hpp"
#include "async.hpp"
#include "block_pool.hpp"
#include "config.hpp"
#include "kv_event_publisher.hpp"
#include "lease_table.hpp"
#include "prefix_cache.hpp"
#include "random.hpp"

namespace handoff::mock {

// Everything that is only counted. Names are those of /mock/state.
struct Counters {
  std::int64_t received = 0, finished = 0, aborted = 0, rejected = 0, errored = 0;
  std::int64_t prefill_requests = 0, decode_requests = 0, plain_requests = 0, misrouted = 0;
  std::int64_t hung_incomplete = 0, wrong_text = 0, zero_token = 0, recomputed = 0, kv_load_failures = 0;
  std::int64_t loads_orphaned = 0;
  std::map<PullOutcome, std::int64_t> pulls;
  std::int64_t local_compute = 0, local_cache_hit = 0, external_kv_transfer = 0, generation = 0;
  std::int64_t cache_queries = 0;
  std::int64_t heartbeats_sent = 0, heartbeats_received = 0, releases_sent = 0, releases_received = 0;
  std::int64_t connections_accepted = 0, fault_hits = 0, deaths = 0;
  std::map<std::string, std::int64_t> by_path;
  std::map<std::string, std::int64_t> by_finish_reason;
};

// Gauges kept up to date by their owners.
struct Gauges {
  std::int64_t queued = 0, running = 0, hanging = 0;
  std::int64_t leaked_blocks = 0;
  std::int64_t connections = 0, side_channel_connections = 0;
  std::int64_t takes_waiting = 0;                      // D's that wait at this P
  std::int64_t loads_waiting = 0, loads_orphaned = 0;  // of this D, and those whose request is gone
};

// Owned by main(); lives as long as the io_context and is used from its single thread only.
class Engine {
 public:
  Engine(net::io_context& io, const MockConfig& config);

  const MockConfig& config() const { return config_; }
  net::io_context& io() { return io_; }
  BlockPool& blocks() { return blocks_; }
  LeaseTable& leases() { return leases_; }
  PrefixCache& prefix_cache() { return prefix_cache_; }
  // Null without --kv-events.
  KvEventPublisher* kv_events() { return kv_events_.get(); }
  const KvEventPublisher* kv_events() const { return kv_events_.get(); }
  // Tells the subscribers what has changed in the prefix cache since the last call; one batch, as the
  // scheduler's step.
  void publish_kv_events();
  // Empties the prefix cache and says so to subscribers. False, and nothing done, while a request or a lease
  // holds blocks of it.
  bool reset_prefix_cache();
  // When a prompt that takes `cost` to compute is done; with --one-prefill-at-a-time after those before it.
  Clock::time_point book_prefill(std::chrono::microseconds cost);
  Counters& counters() { return counters_; }
  const Counters& counters() const { return counters_; }
  Gauges& gauges() { return gauges_; }
  const Gauges& gauges() const { return gauges_; }
  ChangeSignal& changed() { return changed_; }
  Random& random() { return random_; }

  // Every blocking condition (/mock/wait, the queue) is re-checked after this.
  void notify() { changed_.notify(); }

  bool dead() const { return dead_; }
  void die(const std::string& reason);
  void set_dead(bool dead);

  // `uuid`, or `uuid_dpN` with several data-parallel ranks.
  std::string engine_id(std::int64_t rank) const;
  bool owns_engine_id(const std::string& id) const;

  void pin(const std::string& request_id, LeaseTable::Lease lease);
  void pin(const std::string& request_id, LeaseTable::Lease lease, std::chrono::microseconds length);
  void extend(const std::string& request_id);

  // Time-outs that a test need not wait for: while they are up, a wait that only they would end is over at
  // once, those that run included. `waits` are for a peer, `leases` is what is kept for one.
  struct TimesUp {
    bool waits = false;
    bool leases = false;
  };
  void set_times_up(TimesUp up);
  // Whether a wait until `until` has run out.
  bool is_over(Clock::time_point until) const { return times_up_.waits || Clock::now() >= until; }
  bool lease_is_over(Clock::time_point until) const { return times_up_.leases || Clock::now() >= until; }
  // Returns when a wait has.
  Awaitable<void> wait_out(Clock::time_point until);

  // Known once the side channel listens; goes into handoffs.
  std::uint16_t side_channel_port = 0;

  Reply state() const;
  void reset_counters();

 private:
  void arm_expiry(Clock::time_point when);

  net::io_context& io_;
  const MockConfig& config_;
  Random random_;
  std::string engine_id_;
  BlockPool blocks_;
  LeaseTable leases_{blocks_};
  PrefixCache prefix_cache_;
  std::unique_ptr<KvEventPublisher> kv_events_;
  Clock::time_point prefill_free_at_ = Clock::time_point::min();
  Counters counters_;
  Gauges gauges_;
  ChangeSignal changed_;
  net::steady_timer expiry_timer_;
  Clock::time_point expiry_armed_ = Clock::time_point::max();
  TimesUp times_up_;
  bool dead_ = false;
  std::string death_reason_;
};

}  // namespace handoff::mock
