// Where prefill and decode of one room meet. Stands for the bootstrap server of P and the KV transfer.
//
// P listens on its bootstrap port: GET /route and /health as the real server, and POST /kv_transfer, which D
// keeps open until P has the KV:
//   {"room":"12","prompt_hash":"34","rank":0}  ->  {"prompt_hash":"34","cached_tokens":"16"}
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "exchange.hpp"

namespace handoff::mock {

// What P hands over with the KV. The engine's metadata buffers carry how much of the prompt P found in its
// prefix cache, and D reports that as its own.
struct SglangHandover {
  std::uint64_t prompt_hash = 0;
  std::int64_t cached_tokens = 0;
};

// P's end. Owned by the personality, single thread.
class SglangRendezvous {
 public:
  explicit SglangRendezvous(Engine& engine) : engine_(engine) {}

  // Whether D is waiting for this room now, with a rank that fits.
  bool joined(std::uint64_t room, std::int64_t rank) const;
  // Hands the KV over; false when D is not there any more.
  bool deliver(std::uint64_t room, const SglangHandover& handover);
  std::int64_t waiting() const { return static_cast<std::int64_t>(joins_.size()); }
  // Serves the bootstrap port.
  Awaitable<void> serve(Exchange& exchange, std::uint16_t http_port);

 private:
  struct Join {
    std::optional<std::int64_t> rank;
    std::optional<SglangHandover> delivered;
  };
  Awaitable<void> serve_join(Exchange& exchange);

  Engine& engine_;
  std::multimap<std::uint64_t, Join*> joins_;
};

enum class JoinEnd { kDelivered, kNoHandshake, kLost, kTimedOut };

struct JoinResult {
  JoinEnd end = JoinEnd::kLost;
  SglangHandover handover;
};

// D's end: asks for the topology (15 times, 1 s apart), joins, waits for the KV.
Awaitable<JoinResult> join_room(Engine& engine, std::string host, std::uint16_t port, std::uint64_t room,
                                std::uint64_t prompt_hash, std::optional<std::int64_t> prefill_rank);

}  // namespace handoff::mock
