#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "epp/kv_index/block_index.hpp"
#include "epp/kv_index/kv_event_applier.hpp"
#include "epp/kv_index/kv_event_stream.hpp"

namespace handoff::epp {

struct KvFeedOptions {
  KvApplierOptions applier;
  KvStreamOptions stream;       // can_replay is set from the endpoint below
  std::string events_endpoint;  // tcp://host:port of the publisher of this one rank
  std::string replay_endpoint;  // empty: gaps can't be recovered
  bool binds = false;           // the publisher dials us (a "host:port" without wildcard in vLLM's settings)
  int receive_high_water_mark = 100'000;
};

// The subscription to one publisher, that is to one (worker, rank): its sockets, put in order by a
// KvEventStream and applied by a KvEventApplier. Made and driven by one KvFeedPool thread; counters from any
// thread.
class KvEventFeed {
 public:
  ~KvEventFeed();
  KvEventFeed(const KvEventFeed&) = delete;
  KvEventFeed& operator=(const KvEventFeed&) = delete;

  WorkerRank rank() const;
  const KvStreamCounters& stream_counters() const;
  const KvApplierCounters& applier_counters() const;
  std::uint64_t malformed_messages() const;  // not of the right frames

 private:
  friend class KvFeedPool;
  friend class FeedThread;
  class Impl;
  explicit KvEventFeed(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// The threads that feed an index. Owns the feeds; one feed stays with one thread. The index must outlive it,
// and the ranks must be added to the index before their feeds. All methods from any thread but its own.
class KvFeedPool {
 public:
  using Clock = std::function<SteadyTime()>;

  explicit KvFeedPool(BlockIndex& index, std::size_t threads = 2,
                      Clock clock = &std::chrono::steady_clock::now);
  ~KvFeedPool();
  KvFeedPool(const KvFeedPool&) = delete;
  KvFeedPool& operator=(const KvFeedPool&) = delete;

  // Subscribes. On failure null, and `error` says which endpoint is wrong and why. A rank has one feed: the
  // old one goes.
  std::shared_ptr<const KvEventFeed> add(KvFeedOptions options, std::string& error);
  // After it returns, the feed changes the index no more. What it has brought stays: clear_rank or
  // remove_rank is yours.
  bool remove(WorkerRank rank);
  std::shared_ptr<const KvEventFeed> find(WorkerRank rank) const;

  // The address that a binding feed got, with the port chosen when it asked for port 0 or *.
  std::string bound_endpoint(WorkerRank rank) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace handoff::epp
