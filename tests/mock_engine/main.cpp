// Reads the command line, builds the objects, runs one thread until a signal or /mock/exit.
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "config.hpp"
#include "exchange.hpp"
#include "http_listener.hpp"
#include "personality.hpp"

namespace handoff::mock {
namespace {

std::string kv_event_ports(Engine& engine) {
  const KvEventPublisher* events = engine.kv_events();
  if (!events) return {};
  std::string text = " kv_events=" + std::to_string(events->port());
  if (events->replay_port() != 0) text += " kv_replay=" + std::to_string(events->replay_port());
  return text;
}

int run(const MockConfig& config) {
  RequestLog::now_ms();
  net::io_context io(1);
  Engine engine(io, config);
  FaultRules faults(engine.random());
  RequestLog log;
  Services services{config, engine, faults, log, {}, {}, nullptr};
  if (!config.faults_json.empty()) {
    const auto rules = parse_json(config.faults_json);
    const std::string error = rules ? faults.add(*rules) : "not JSON";
    if (!error.empty()) {
      std::fprintf(stderr, "handoff-mock-engine: --faults: %s\n", error.c_str());
      return 2;
    }
  }
  const auto personality = make_personality(services);
  services.personality = personality.get();
  HttpListener http(services, config.bind, config.port, Door::kEngine);
  HttpListener control(services, config.bind, config.control_port, Door::kControl);
  services.die = [&] {
    engine.die("died");
    http.close();
    personality->close();
    if (engine.kv_events()) engine.kv_events()->close();
  };
  services.exit = [&io] { io.stop(); };

  net::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&io](ErrorCode, int) { io.stop(); });
  personality->start();
  http.start();
  control.start();
  std::printf(
      "handoff-mock-engine listening http=%s side_channel=%s role=%s engine_id=%s control=%s engine=%s%s%s\n",
      http.address().c_str(), personality->peer_address().c_str(), personality->role().c_str(),
      engine.engine_id(0).c_str(), control.address().c_str(), engine_name(config.engine),
      kv_event_ports(engine).c_str(), personality->printed_ports().c_str());
  std::fflush(stdout);
  io.run();
  // Requests still waiting in coroutines refer to objects that would be destroyed before them. They need no
  // tidy end.
  std::fflush(nullptr);
  std::_Exit(0);
}

}  // namespace
}  // namespace handoff::mock

int main(int argc, char** argv) {
  const handoff::mock::MockConfig config = handoff::mock::parse_command_line(argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return handoff::mock::run(config);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "handoff-mock-engine: %s\n", error.what());
    return 2;
  }
}
