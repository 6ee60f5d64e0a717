// Connections to engines, kept alive between requests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/deadline_queue.hpp"
#include "sidecar/transport.hpp"

namespace handoff::sidecar {

/// Where an engine listens. `host` is a bare name or address; `authority` is how it stands in a Host header.
struct EngineAddress {
  std::string host;
  std::uint16_t port = 0;
  std::string authority;
};

EngineAddress make_engine_address(std::string_view host, std::uint16_t port);

/// One connection to an engine and its deadline. Owned by a leg while in use, by the pool while idle.
class UpstreamConnection {
 public:
  UpstreamConnection(DeadlineQueue& deadlines, Socket socket, std::string key);

  Transport transport;
  /// While in use: the longest silence of the engine. While idle: the end of idleness.
  Deadline deadline;
  std::function<void()> on_deadline;
  bool reused = false;
  const std::string key;
};

/// Idle connections of one loop, last used first. Bounded in all; an idle connection lives no longer than
/// `idle_limit`, which must be below the engine's own keep-alive limit, or requests would run into its close,
/// and is closed as soon as the engine closes it or says anything. Keeps the io_context running while it has
/// any.
class UpstreamPool {
 public:
  UpstreamPool(DeadlineQueue& deadlines, milliseconds idle_limit, std::size_t max_idle);

  /// A kept connection on which the engine has neither hung up nor said anything since, or null.
  std::unique_ptr<UpstreamConnection> take(const EngineAddress& engine);
  void give_back(std::unique_ptr<UpstreamConnection> connection);
  /// Closes what is idle of one engine: it has just closed a kept connection under a request, so its others
  /// are as doubtful, and the next try is to have a new one.
  void forget(const EngineAddress& engine);
  /// Closes what is idle, and keeps nothing from now on.
  void close();
  std::size_t idle_count() const { return idle_count_; }
  DeadlineQueue& deadlines() { return deadlines_; }

 private:
  void drop(UpstreamConnection& connection);

  DeadlineQueue& deadlines_;
  milliseconds idle_limit_;
  std::size_t max_idle_;
  std::size_t idle_count_ = 0;
  bool closed_ = false;
  std::map<std::string, std::vector<std::unique_ptr<UpstreamConnection>>, std::less<>> idle_;
};

}  // namespace handoff::sidecar
