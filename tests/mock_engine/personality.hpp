// What one kind of engine does behind the mock's front door. HTTP, faults, the request log, the KV pool and
// /mock/* are the same for all kinds and know none of them.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "exchange.hpp"

namespace handoff::mock {

// An answer to /mock/expect that is not about a good request.
struct PlainAnswer {
  int status = 400;
  std::string body;
};

// Owned by Services; lives as long as the io_context and is used from its single thread only.
class Personality {
 public:
  virtual ~Personality() = default;

  // Opens what the engine listens on beside its HTTP port. Called once, before the first request.
  virtual void start() = 0;
  // The process is gone: RST on all that start() opened. Requests are told by Engine::dead().
  virtual void close() = 0;
  // `host:port` where engines of this kind meet each other; valid after construction.
  virtual std::string peer_address() const = 0;

  // More ports, for the end of the first line, with a leading space.
  virtual std::string printed_ports() const { return {}; }

  // What the first line and /mock/state call this engine's part in P/D.
  virtual std::string role() const = 0;

  // Which leg of a P/D request a body is; for the log and for fault rules.
  virtual Leg leg_of(const Json& body) const = 0;
  // Answers one request on the HTTP port, 404 and 405 too.
  virtual Awaitable<void> serve(Exchange& exchange) = 0;
  // Answers one request on a listener with Door::kPeer, for kinds that have one.
  virtual Awaitable<void> serve_peer(Exchange& exchange);
  // What /mock/expect is asked about.
  virtual std::variant<ApiRequest, PlainAnswer> expected(const std::string& path, const Json& body) const = 0;
  // Adds to /mock/state what only this kind counts.
  virtual void add_state(Reply& state) const;
  virtual void reset_counters() {}
};

// The personality that --engine names.
std::unique_ptr<Personality> make_personality(Services& services);

// One maker per kind, each in the kind's own file.
std::unique_ptr<Personality> make_vllm_personality(Services& services);
std::unique_ptr<Personality> make_sglang_personality(Services& services);
std::unique_ptr<Personality> make_trtllm_personality(Services& services);

}  // namespace handoff::mock
