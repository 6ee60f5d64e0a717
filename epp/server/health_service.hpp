#pragma once

#include <memory>

namespace grpc {
class ServerBuilder;
}

namespace handoff::epp {

// gRPC's health protocol under every name in use, on a queue and a thread of its own. gRPC's own service
// would bring threads that wait for the same connections as those of the streams do: whatever such a thread
// receives it has to hand over, which was 14 futex calls and 9 wake-ups for a decision.
//
// Owner: the server's owner. Life: made before the server is built, start() after, stop() before the server
// is shut down, destroyed after that.
class HealthService {
 public:
  explicit HealthService(grpc::ServerBuilder& builder);
  ~HealthService();

  void start();
  // Any thread.
  void set_ready(bool ready);
  // Ends what watches, which would hold up the server's end. Checks are still answered.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace handoff::epp
