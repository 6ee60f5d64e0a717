// Reads the command line, builds the objects, runs one thread until a signal or /mock/exit.
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "config.hpp"
#include "exchange.hpp"
#include "http_listener.hpp"
#include "personality.hpp"

namespace handoff::mock {
namespace {

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
  };
  services.exit = [&io] { io.stop(); };

  net::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&io](ErrorCode, int) { io.stop(); });
  personality->start();
  http.start();
  control.start();
  std::printf(
      "handoff-mock-engine listening http=%s side_channel=%s role=%s engine_id=%s control=%s engine=%s\n",
      http.address().c_str(), personality->peer_address().c_str(), role_name(config.role),
      engine.engine_id(0).c_str(), control.address().c_str(), engine_name(config.engine));
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
