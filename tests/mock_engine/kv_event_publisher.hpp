// The ZMQ sockets of an engine's KV events: per data-parallel rank a PUB socket and, if asked for, a ROUTER
// socket that replays what was published. The frames are those of vLLM (vllm/distributed/kv_events.py).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "async.hpp"
#include "config.hpp"
#include "prefix_cache.hpp"

namespace handoff::mock {

// Owned by Engine, used from its single thread; never blocks, as ZMQ drops what a slow subscriber does not
// take.
class KvEventPublisher {
 public:
  // Throws std::runtime_error when a port can't be had.
  KvEventPublisher(net::io_context& io, const MockConfig& config);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // One batch per rank that has events.
  void publish(const std::vector<CacheEvent>& events);
  // A batch of events as a test spells them.
  void publish_raw(std::int64_t rank, const nlohmann::json& events);
  // The next `batches` batches of every rank count, and can be replayed, but are not sent.
  void lose(std::int64_t batches) { to_lose_ = batches; }
  // As a new process on the same ports: numbers begin at 0, the replay buffer is empty.
  void restart();
  void close();

  // Ports of rank 0; rank r has port + r. The replay port is 0 without a replay socket.
  std::uint16_t port() const { return port_; }
  std::uint16_t replay_port() const { return replay_port_; }

  struct Counters {
    std::int64_t batches = 0, lost = 0, stored_blocks = 0, removed_blocks = 0, cleared = 0, replays = 0;
  };
  const Counters& counters() const { return counters_; }
  // The number that rank 0's next batch will have.
  std::uint64_t next_sequence() const;

 private:
  class Rank;

  void open();
  bool try_open(std::uint16_t port, std::uint16_t replay_port);

  net::io_context& io_;
  const MockConfig& config_;
  std::uint16_t port_ = 0;
  std::uint16_t replay_port_ = 0;
  std::int64_t to_lose_ = 0;
  Counters counters_;
  struct Context;
  std::unique_ptr<Context> context_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace handoff::mock
