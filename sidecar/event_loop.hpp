// One thread's worth of sidecar: its own listener, pools and sessions.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/intrusive/list.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sidecar/backend_services.hpp"
#include "sidecar/client_session.hpp"
#include "sidecar/engine_health.hpp"
#include "sidecar/listener.hpp"
#include "sidecar/loop_services.hpp"

namespace handoff::sidecar {

/// Everything in it is used on its thread only, except what is said to be callable from outside. Loops share
/// the constant plan and the readiness flags, nothing else.
class EventLoop {
 public:
  EventLoop(const SharedPlan& plan, Readiness& readiness, std::span<const std::string> backend_values,
            std::size_t loops);
  ~EventLoop();

  /// Before start(): listens for clients (or the admin port). Returns the port.
  std::uint16_t listen(const std::string& address, std::uint16_t port, Surface surface);
  /// Before start(): polls the engine from this loop.
  void watch_engine(std::string path, milliseconds interval);
  void start();

  // Callable from outside; each is carried out on the loop's thread.
  void close_listeners();
  void cancel_all();
  void cancel_background();
  void refresh_counts();
  /// Lets go of everything, so that the thread ends by itself once all coroutines have returned.
  void finish();
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  void join() { thread_.join(); }
  std::size_t sessions() const { return session_count_.load(std::memory_order_relaxed); }
  std::size_t background() const { return background_count_.load(std::memory_order_relaxed); }

  /// After the thread has ended.
  const Counters& counters() const { return counters_; }

 private:
  void accept(Socket socket, Surface surface);
  void publish_counts();

  // Declared in the order of dependence: what comes later refers to what comes before, and is destroyed
  // first.
  // Sockets are used by the loop's thread alone, so the reactor needs no locks; posting from others stays
  // safe.
  net::io_context context_{BOOST_ASIO_CONCURRENCY_HINT_UNSAFE_IO};
  DeadlineQueue deadlines_{context_};
  std::vector<char> scratch_;
  Counters counters_;
  MemoryBudget budget_;
  RequestPool requests_{budget_};
  UpstreamPool pool_;
  LegContext legs_;
  BackgroundCalls background_;
  BackendServices backend_services_;
  std::unique_ptr<BackendInstance> backend_;
  LoopServices services_;
  std::size_t max_sessions_;
  std::string id_prefix_;
  std::uint64_t accepted_ = 0;
  boost::intrusive::list<ClientSession> sessions_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::optional<EngineHealth> health_;
  std::atomic<std::size_t> session_count_{0};
  std::atomic<std::size_t> background_count_{0};
  std::atomic<bool> finished_{false};
  std::optional<net::executor_work_guard<Executor>> work_;
  std::thread thread_;
};

}  // namespace handoff::sidecar
