#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "epp/ext_proc/ext_proc_stream.hpp"
#include "epp/planning/request_life.hpp"

namespace handoff::epp {

struct ExtProcServerOptions {
  std::string bind;
  std::uint16_t port = 0;
  std::uint16_t health_port = 0;
  bool secure = true;
  std::string certificate_path;  // both empty: self-signed
  std::string key_path;
  std::size_t threads = 1;
  ExtProcLimits limits;
  std::chrono::milliseconds request_body_timeout{60000};
  std::uint64_t retry_after_secs = 1;
  std::function<std::string()> report;  // JSON; null: not served
};

// Chooses how gRPC's threads wait for the network. Before any other thread is there and before anything else
// of gRPC.
void let_queues_wait_apart();

// The gRPC side: ext_proc streams on completion queues, one per thread, and health checks on both ports under
// every name in use. A stream belongs to one queue's thread from its first message to its end.
//
// Owner: the program. `life` must outlive it. Methods from one thread.
class ExtProcServer {
 public:
  // Listens from here on. Throws std::runtime_error that names the port.
  ExtProcServer(ExtProcServerOptions options, const LifeServices& life);
  // Stops at once.
  ~ExtProcServer();

  std::uint16_t port() const;
  std::uint16_t health_port() const;
  std::size_t open_streams() const;

  void set_ready(bool ready);
  // Takes no new streams, waits for those that are open, cancels what is left.
  void stop(std::chrono::milliseconds patience);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace handoff::epp
