// Opens N keep-alive connections, sends one request on each, prints `holding` and keeps them until its
// standard input ends.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "chat_request.hpp"
#include "http_reader.hpp"
#include "loopback.hpp"

namespace {

constexpr std::uint64_t kAnswerLimitMs = 10'000;

// False unless a 2xx answer came and the connection stays open.
bool get_answer(const bench::Fd& socket, const std::string& request) {
  std::size_t sent = 0;
  while (sent < request.size()) {
    const ssize_t part = send(socket.get(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (part <= 0) return false;
    sent += static_cast<std::size_t>(part);
  }
  bench::HttpReader reader(bench::HttpReader::Role::responses);
  char buffer[16384];
  for (;;) {
    const ssize_t received = recv(socket.get(), buffer, sizeof buffer, 0);
    if (received <= 0) return false;
    std::string_view input(buffer, static_cast<std::size_t>(received));
    for (;;) {
      const bench::HttpReader::Step step = reader.next(input);
      if (step.kind == bench::HttpReader::Kind::need_more) break;
      if (step.kind == bench::HttpReader::Kind::malformed) return false;
      if (step.kind == bench::HttpReader::Kind::end)
        return reader.status() / 100 == 2 && reader.keeps_alive();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {BENCH_REQUEST_FLAGS, "--connections"});
  const std::uint64_t connections = arguments.number("--connections", 100, 1, 20'000);
  const bench::ChatRequest request = bench::make_chat_request(arguments, false);
  bench::raise_fd_limit();
  std::vector<bench::Fd> held;
  for (std::uint64_t i = 0; i < connections; ++i) {
    bench::Fd socket = bench::connect_to_loopback(request.port);
    if (!socket) bench::fail("connect");
    bench::set_blocking(socket, kAnswerLimitMs);
    if (!get_answer(socket, request.bytes)) {
      std::fprintf(stderr, "error: connection %llu got no kept-alive 2xx answer\n",
                   static_cast<unsigned long long>(i));
      return 1;
    }
    held.push_back(std::move(socket));
  }
  std::printf("holding connections=%zu\n", held.size());
  std::fflush(stdout);
  char ignored = 0;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
}
