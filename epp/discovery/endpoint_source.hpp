#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace handoff::epp {

enum class EndpointRole : std::uint8_t { kPrefill, kDecode };

// An inference endpoint as a discovery source knows it: a value, whatever it was found by.
struct Endpoint {
  std::string name;             // unique in its source; a pod's name in Kubernetes
  std::uint64_t worker_id = 0;  // derived from the name, equal in every replica
  std::string address;          // IPv4 or IPv6 literal, without brackets; names are resolved by the source
  std::uint16_t port = 0;       // for inference: of a decode worker its sidecar's
  std::optional<EndpointRole> role;

  bool kv_events = true;                        // false: it publishes none
  std::optional<std::uint16_t> kv_event_port;   // rank r publishes on this + r; unset: the program's default
  std::optional<std::uint16_t> kv_replay_port;  // rank r replays on this + r; unset: the program's default
  std::uint32_t data_parallel_size = 1;
  std::map<std::string, std::string> labels;

  // Whether it may get new requests. `not_ready_reason` says why not, for logs and reports; empty when it
  // may.
  bool ready = false;
  std::string not_ready_reason;

  bool operator==(const Endpoint&) const = default;
};

// "10.0.0.7:8000", "[fd00::7]:8000".
inline std::string socket_address(std::string_view address, std::uint16_t port) {
  const bool is_v6 = address.find(':') != std::string_view::npos;
  std::string text;
  if (is_v6) text += '[';
  text += address;
  if (is_v6) text += ']';
  return text.append(":").append(std::to_string(port));
}

// Told what a source finds. Called on a thread of the source, one call at a time; it may take milliseconds
// but must not wait for anything, nor call the source.
class EndpointListener {
 public:
  virtual ~EndpointListener() = default;
  // New, or changed in any field. The name identifies it.
  virtual void on_endpoint(const Endpoint& endpoint) = 0;
  virtual void on_endpoint_removed(std::string_view name) = 0;
  // The calls since the last one of these belong together, as the endpoints of one file do: the time to do
  // what costs as much for one as for thousands. Comes after every change. True: there is more to do than can
  // be done in milliseconds, so it wants to be called again, after what else is due; then the change counts
  // as told.
  virtual bool on_batch_end() = 0;
  // True: everything known by now has been told, and the view is current. False: the view went stale (a watch
  // broke); the endpoints told so far stay until they are removed. A source starts as not synced.
  virtual void on_synced(bool synced) = 0;
};

// Finds endpoints and keeps watching them: a file, or Kubernetes.
//
// Owner: the program. start() once; after stop() (or destruction) returns, the listener is not called again.
class EndpointSource {
 public:
  virtual ~EndpointSource() = default;
  // `listener` must outlive stop(). The first calls may come before this returns.
  virtual void start(EndpointListener& listener) = 0;
  virtual void stop() = 0;
};

}  // namespace handoff::epp
