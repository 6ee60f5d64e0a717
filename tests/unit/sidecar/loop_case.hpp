// An event loop for tests of what lives on one: coroutines run to their end on it, engines are played by
// scripts.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sidecar/client_connection.hpp"
#include "sidecar/deadline_queue.hpp"
#include "sidecar/upstream_leg.hpp"
#include "sidecar/upstream_pool.hpp"

namespace handoff::sidecar {

/// Never expires in a healthy run, however slow the machine.
constexpr milliseconds kPatience{30000};
/// For what is expected to expire.
constexpr milliseconds kShort{30};

/// What a scripted engine does on one connection, step by step.
struct Step {
  enum class Kind { read_head, read_request, send, close, reset, wait_for_close } kind;
  std::string bytes;  // send

  /// Of the next request, which is left for read_request().
  static Step read_head() { return {Kind::read_head, {}}; }
  static Step read_request() { return {Kind::read_request, {}}; }
  static Step send(std::string bytes) { return {Kind::send, std::move(bytes)}; }
  static Step close() { return {Kind::close, {}}; }
  static Step reset() { return {Kind::reset, {}}; }
  /// Says nothing until the other side has gone.
  static Step wait_for_close() { return {Kind::wait_for_close, {}}; }
};
using Script = std::vector<Step>;

/// Plays one script per connection, in the order in which they come. Requests are taken as read at their
/// empty line and, where they have a Content-Length, with that many bytes. Its coroutines may outlive it, and
/// so share its state.
class ScriptedEngine {
 public:
  ScriptedEngine(net::io_context& context, std::vector<Script> scripts)
      : state_(std::make_shared<State>(context, std::move(scripts))) {
    net::co_spawn(context, accept_all(state_), [](std::exception_ptr) {});
  }
  ~ScriptedEngine() {
    error_code ignored;
    state_->acceptor.close(ignored);
  }

  EngineAddress address() const {
    return make_engine_address("127.0.0.1", state_->acceptor.local_endpoint().port());
  }
  std::size_t connections() const { return state_->connections; }
  /// Connections whose script has ended.
  std::size_t ended() const { return state_->ended; }
  const std::vector<std::string>& requests() const { return state_->requests; }

 private:
  static constexpr auto kTuple = net::as_tuple(kUseAwaitable);

  struct State {
    State(net::io_context& context, std::vector<Script> given)
        : acceptor(context, tcp::endpoint(net::ip::address_v4::loopback(), 0)), scripts(std::move(given)) {}
    net::basic_socket_acceptor<tcp, Executor> acceptor;
    std::vector<Script> scripts;
    std::vector<std::string> requests;
    std::size_t connections = 0;
    std::size_t ended = 0;
  };
  using StatePtr = std::shared_ptr<State>;

  static Awaitable<> accept_all(StatePtr state) {
    while (state->connections < state->scripts.size()) {
      auto [ec, socket] = co_await state->acceptor.async_accept(kTuple);
      if (ec) co_return;
      const auto script = state->connections++;
      net::co_spawn(state->acceptor.get_executor(), play(state, std::move(socket), script),
                    [](std::exception_ptr) {});
    }
  }

  static Awaitable<> play(StatePtr state, Socket socket, std::size_t script) {
    std::string inbox;
    for (const auto& step : state->scripts[script]) {
      if (step.kind == Step::Kind::read_head) {
        bool open = true;
        while (open && inbox.find("\r\n\r\n") == std::string::npos) open = co_await read_some(socket, inbox);
        if (!open) break;
      } else if (step.kind == Step::Kind::read_request) {
        const bool whole = co_await read_request(*state, socket, inbox);
        if (!whole) break;
      } else if (step.kind == Step::Kind::send) {
        co_await net::async_write(socket, net::buffer(step.bytes), kTuple);
      } else if (step.kind == Step::Kind::reset) {
        error_code ignored;
        socket.set_option(net::socket_base::linger(true, 0), ignored);
      } else if (step.kind == Step::Kind::wait_for_close) {
        bool open = true;
        while (open) open = co_await read_some(socket, inbox);
      }
    }
    error_code ignored;
    socket.close(ignored);
    ++state->ended;
  }

  static Awaitable<bool> read_some(Socket& socket, std::string& inbox) {
    std::array<char, 65536> buffer;  // small reads make the kernel open the window late
    auto [ec, size] = co_await socket.async_read_some(net::buffer(buffer), kTuple);
    if (ec) co_return false;
    inbox.append(buffer.data(), size);
    co_return true;
  }

  static Awaitable<bool> read_request(State& state, Socket& socket, std::string& inbox) {
    while (true) {
      const auto end = inbox.find("\r\n\r\n");
      if (end != std::string::npos) {
        auto size = end + 4;
        const auto at = inbox.find("content-length: ");
        if (at < end) size += std::stoul(inbox.substr(at + 16));
        if (inbox.size() >= size) {
          state.requests.push_back(inbox.substr(0, size));
          inbox.erase(0, size);
          co_return true;
        }
      }
      const bool more = co_await read_some(socket, inbox);
      if (!more) co_return false;
    }
  }

  StatePtr state_;
};

class LoopCase : public ::testing::Test {
 protected:
  /// Runs the loop until the condition holds. False: it does not come true.
  template <class Condition>
  bool run_until(Condition condition) {
    const auto end = Clock::now() + kPatience;
    while (!condition() && Clock::now() < end) {
      context.restart();
      context.run_one_for(milliseconds(5));
    }
    return condition();
  }
  /// Runs the loop for a while, whatever happens.
  void run_for(milliseconds time) {
    context.restart();
    context.run_for(time);
  }
  /// Starts a coroutine; `ended` turns true with its end.
  void spawn(Awaitable<> task, bool& ended) {
    net::co_spawn(context, std::move(task), [&ended](std::exception_ptr error) {
      EXPECT_FALSE(error);
      ended = true;
    });
  }
  void run(Awaitable<> task) {
    bool ended = false;
    spawn(std::move(task), ended);
    ASSERT_TRUE(run_until([&] { return ended; }));
  }

  /// Both ends of a connection over loopback.
  std::pair<Socket, Socket> make_connection() {
    net::basic_socket_acceptor<tcp, Executor> acceptor(context,
                                                       tcp::endpoint(net::ip::address_v4::loopback(), 0));
    Socket near(context);
    near.connect(acceptor.local_endpoint());
    Socket far = acceptor.accept();
    return {std::move(near), std::move(far)};
  }

  net::io_context context{1};
  DeadlineQueue deadlines{context};
  UpstreamPool pool{deadlines, kPatience, 8};
  std::vector<char> scratch = std::vector<char>(64 * 1024);
  LegContext legs{.context = context,
                  .pool = pool,
                  .scratch = scratch,
                  .head_limits = {},
                  .connect_timeout = kPatience,
                  .read_timeout = kPatience};
};

}  // namespace handoff::sidecar
