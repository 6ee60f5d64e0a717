// The private channel between mocks: stands for vLLM's ZMQ handshake, NIXL reads and NIXL notifications.
//
// One JSON object per line over TCP, one line back:
//   {"op":"pull","engine_id":…,"request_id":…,"block_ids":…,"prompt_hash":"…"}  -> {"outcome":"fresh"|…}
//   {"op":"release","request_id":…}                                             -> {"ok":bool}
//   {"op":"heartbeat","request_ids":[…]}                                        -> {"ok":true}
// and for connectors whose engines meet by a name, where either may come first:
//   {"op":"take","engine_id":…,"name":…,"prompt_hash":"…","wait_us":n}          -> {"outcome":"fresh"|…}
//   {"op":"hello","engine_id":…}                                                ->
//   {"outcome":"fresh"|"mismatch"}
// "pull", "take" and "hello" also say which connector asks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "async.hpp"
#include "engine.hpp"

namespace handoff::mock {

// P's end. Owned by main(); its connections end with close() or with their peers.
class SideChannelServer {
 public:
  SideChannelServer(Engine& engine, const std::string& bind, std::uint16_t port);

  // Finds the live lease that a take means: the engine it asks, and the name.
  using FindLease =
      std::function<std::optional<std::string>(const std::string& engine_id, const std::string& name)>;
  // Without this every take waits for its time to be over.
  void serve_takes(FindLease find) { find_ = std::move(find); }

  void start();
  // `host:port`, with brackets around an IPv6 host.
  std::string address() const;
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  // RST on everything: the engine process is gone.
  void close();

 private:
  Awaitable<void> accept_loop();
  Awaitable<void> serve(std::shared_ptr<tcp::socket> socket);
  Awaitable<std::string> answer(std::string line);
  Awaitable<std::string> answer_take(Json message);
  std::string answer_now(const Json& message);
  bool is_for_us(const Json& message) const;

  Engine& engine_;
  FindLease find_;
  tcp::acceptor acceptor_;
  std::unordered_set<tcp::socket*> open_;
};

// Where a handoff says its blocks are, and whose they are.
struct RemoteLease {
  std::string host;
  std::uint16_t port = 0;
  std::string engine_id;
  std::string request_id;
};

// D's end. Each call uses a connection of its own: simple, and a restarted P is noticed at once.
Awaitable<PullOutcome> pull_blocks(Engine& engine, RemoteLease lease, Json block_ids,
                                   std::uint64_t prompt_hash);

// What D asks P for by name.
struct TakeRequest {
  std::string host;
  std::uint16_t port = 0;
  std::string engine_id;
  std::string name;
  std::uint64_t prompt_hash = 0;
  std::optional<std::chrono::microseconds> wait;  // how long P waits for its own leg; for ever
};
// kUnreachable also when P goes away meanwhile.
Awaitable<PullOutcome> take_blocks(Engine& engine, TakeRequest request);
// The handshake alone: kFresh, kMismatch or kUnreachable.
Awaitable<PullOutcome> shake_hands(Engine& engine, TakeRequest request);

// Fire and forget, because it is called from destructors of abandoned requests.
void send_release(Engine& engine, const RemoteLease& lease);

// Sends heartbeats from construction to destruction, as D does while a request waits for its KV. The first
// one goes out after one interval.
class HeartbeatSender {
 public:
  HeartbeatSender(Engine& engine, const RemoteLease& lease);
  ~HeartbeatSender();
  HeartbeatSender(const HeartbeatSender&) = delete;
  HeartbeatSender& operator=(const HeartbeatSender&) = delete;

 private:
  // An expired pace means "stop". Shared with the sending coroutine, which notices a moment after the
  // destructor.
  std::shared_ptr<net::steady_timer> pace_;
};

}  // namespace handoff::mock
