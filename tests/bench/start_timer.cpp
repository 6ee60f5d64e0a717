// Starts a command on a core, connects to its port until that is accepted, and prints the time from exec. The
// command is ended before the next repeat: SIGTERM, then SIGKILL.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "arguments.hpp"
#include "loopback.hpp"

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kStartLimit = 10'000 * kMillisecond;
constexpr std::uint64_t kStopLimit = 5'000 * kMillisecond;

void run_command(const bench::Arguments& arguments, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<unsigned>(core), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
  const int quiet = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) dup2(quiet, fd);
  execvp(arguments.command().front(), arguments.command().data());
  _exit(127);
}

bool has_ended(pid_t pid) {
  return waitpid(pid, nullptr, WNOHANG) == pid;
}

void stop(pid_t pid) {
  kill(pid, SIGTERM);
  const std::uint64_t limit = bench::now_ns() + kStopLimit;
  while (bench::now_ns() < limit) {
    if (has_ended(pid)) return;
    usleep(500);
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

// A server that answers is more than a kernel that queues: one byte of an answer proves that the loop runs.
bool answers(const bench::Fd& socket) {
  bench::set_blocking(socket, 5'000);
  constexpr char kRequest[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  char byte = 0;
  return send(socket.get(), kRequest, sizeof kRequest - 1, MSG_NOSIGNAL) > 0 &&
         recv(socket.get(), &byte, 1, 0) == 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--port", "--core", "--repeats"});
  const auto port = static_cast<std::uint16_t>(arguments.number("--port", 0, 1, 65535));
  const int core = static_cast<int>(arguments.number("--core", 0, 0, 1023));
  const std::uint64_t repeats = arguments.number("--repeats", 10, 1, 1000);
  if (arguments.command().front() == nullptr || port == 0) {
    std::fprintf(stderr, "error: --port and a command behind -- are needed\n");
    return 2;
  }
  if (bench::connect_to_loopback(port)) {
    std::fprintf(stderr, "error: --port: somebody listens there already\n");
    return 1;
  }
  std::printf(R"({"starts":[)");
  for (std::uint64_t i = 0; i < repeats; ++i) {
    const std::uint64_t begin = bench::now_ns();
    const pid_t pid = fork();
    if (pid < 0) bench::fail("fork");
    if (pid == 0) run_command(arguments, core);
    bench::Fd socket;
    while (!(socket = bench::connect_to_loopback(port))) {
      if (has_ended(pid)) {
        std::fprintf(stderr, "error: the command ended before it listened\n");
        return 1;
      }
      if (bench::now_ns() - begin > kStartLimit) {
        stop(pid);
        std::fprintf(stderr, "error: nothing listened within 10 s\n");
        return 1;
      }
    }
    const double connected_ms = static_cast<double>(bench::now_ns() - begin) / 1e6;
    const bool answered = answers(socket);
    const double answered_ms = static_cast<double>(bench::now_ns() - begin) / 1e6;
    socket = bench::Fd();
    stop(pid);
    std::printf(R"(%s{"connected_ms":%.3f,"answered_ms":%.3f})", i == 0 ? "" : ",", connected_ms,
                answered ? answered_ms : -1.0);
  }
  std::printf("]}\n");
}
