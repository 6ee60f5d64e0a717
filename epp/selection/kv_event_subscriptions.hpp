#pragma once

#include <cstdint>
#include <string>

#include "epp/kv_index/worker_rank.hpp"

namespace handoff::epp {

class BlockIndex;

// Where the events of one rank come from.
struct KvEventAddress {
  std::string events;  // SUB
  std::string replay;  // ROUTER; empty: gaps cannot be filled
  std::uint32_t block_size = 0;
  bool operator==(const KvEventAddress&) const = default;
};

// Keeps a block index fed with the events of its ranks. Given to the service, so that tests publish by hand
// and a program shares one feed between partitions.
//
// Threads: any. After unsubscribe() returns, nothing more is written to the index for that rank.
class KvEventSubscriptions {
 public:
  virtual ~KvEventSubscriptions() = default;
  virtual void subscribe(BlockIndex& index, WorkerRank rank, const KvEventAddress& address) = 0;
  virtual void unsubscribe(BlockIndex& index, WorkerRank rank) = 0;
};

}  // namespace handoff::epp
