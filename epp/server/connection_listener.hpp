#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace handoff::epp {

// Takes the connections of one port on a thread of its own. gRPC's own listener takes none any more, ever,
// once the process has been out of descriptors for a moment; this one waits until there are some.
class ConnectionListener {
 public:
  // Listens when it returns. `bind`: an address or name; the wildcard of either family means both. `setting`
  // is what an error names, with what can't be listened on. `left_to_others`: how many of the process's
  // descriptors connections of this port never get, or an eighth of all if that is less. Throws
  // std::runtime_error.
  ConnectionListener(const std::string& bind, std::uint16_t port, const std::string& setting,
                     std::uint64_t left_to_others = 0);
  ~ConnectionListener();
  ConnectionListener(const ConnectionListener&) = delete;
  ConnectionListener& operator=(const ConnectionListener&) = delete;

  std::uint16_t port() const;

  // From now on `take` gets each connection's descriptor, which is then its own, on the listener's thread.
  // Until then they wait in the kernel.
  void start(std::function<void(int descriptor)> take);
  // Nobody is taken any more; who waits is refused. Safe to call again.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace handoff::epp
