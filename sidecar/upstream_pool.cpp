#include "sidecar/upstream_pool.hpp"

#include <algorithm>
#include <utility>

namespace handoff::sidecar {
namespace {

constexpr std::size_t kKeptEngines = 256;

}  // namespace

EngineAddress make_engine_address(std::string_view host, std::uint16_t port) {
  EngineAddress address{std::string(host), port, {}};
  const bool is_ipv6 = host.find(':') != std::string_view::npos;
  address.authority = is_ipv6 ? "[" + address.host + "]" : address.host;
  address.authority += ':';
  address.authority += std::to_string(port);
  return address;
}

UpstreamConnection::UpstreamConnection(DeadlineQueue& deadlines, Socket socket, std::string connection_key)
    : transport(std::move(socket)),
      deadline(deadlines, [this] { on_deadline(); }),
      key(std::move(connection_key)) {}

UpstreamPool::UpstreamPool(DeadlineQueue& deadlines, milliseconds idle_limit, std::size_t max_idle)
    : deadlines_(deadlines), idle_limit_(idle_limit), max_idle_(max_idle) {}

std::unique_ptr<UpstreamConnection> UpstreamPool::take(const EngineAddress& engine) {
  const auto found = idle_.find(engine.authority);
  if (found == idle_.end()) return nullptr;
  auto& kept = found->second;
  while (!kept.empty()) {
    auto connection = std::move(kept.back());
    kept.pop_back();
    --idle_count_;
    // Closed by the engine, or it said something that nobody asked for: that would be read as the next
    // request's answer.
    connection->transport.stop_telling();
    if (!connection->transport.is_quiet_now()) continue;
    connection->deadline.disarm();
    connection->on_deadline = nullptr;
    connection->reused = true;
    return connection;
  }
  return nullptr;
}

void UpstreamPool::give_back(std::unique_ptr<UpstreamConnection> connection) {
  if (closed_ || idle_count_ >= max_idle_ || !connection->transport.seems_quiet()) return;
  auto* kept = connection.get();
  kept->transport.on_readable([this, kept] { drop(*kept); });
  kept->transport.tell_when_readable();
  kept->on_deadline = [this, kept] { drop(*kept); };
  kept->deadline.arm(idle_limit_);
  // The places of engines that come and go are kept until there are many: most engines come back.
  if (idle_.size() >= kKeptEngines)
    std::erase_if(idle_, [](const auto& engine) { return engine.second.empty(); });
  idle_[kept->key].push_back(std::move(connection));
  ++idle_count_;
}

void UpstreamPool::drop(UpstreamConnection& connection) {
  const auto found = idle_.find(connection.key);
  if (found == idle_.end()) return;
  auto& kept = found->second;
  const auto at =
      std::find_if(kept.begin(), kept.end(), [&](const auto& other) { return other.get() == &connection; });
  if (at == kept.end()) return;
  auto doomed = std::move(*at);  // outlives the call of its own that brought us here
  kept.erase(at);
  --idle_count_;
}

void UpstreamPool::forget(const EngineAddress& engine) {
  const auto found = idle_.find(engine.authority);
  if (found == idle_.end()) return;
  idle_count_ -= found->second.size();
  found->second.clear();
}

void UpstreamPool::close() {
  closed_ = true;
  idle_.clear();
  idle_count_ = 0;
}

}  // namespace handoff::sidecar
