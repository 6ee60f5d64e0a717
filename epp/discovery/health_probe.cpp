#include "epp/discovery/health_probe.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <variant>

#include "epp/discovery/endpoint_source.hpp"
#include "epp/discovery/net.hpp"

namespace handoff::epp {
namespace {

// More than any status line.
constexpr std::size_t kMaxStatusLine = 4096;

// "HTTP/1.1 200 OK"; only the number counts.
std::string verdict_on(const std::string& line) {
  const bool is_http = line.size() >= 12 && line.starts_with("HTTP/1.") && line[8] == ' ';
  if (!is_http) return "not an HTTP answer";
  const std::string status = line.substr(9, 3);
  if (status.find_first_not_of("0123456789") != std::string::npos) return "not an HTTP answer";
  return status.front() == '2' ? std::string() : "status " + status;
}

// A lack of ours, which says nothing about the endpoint.
bool is_ours(const boost::system::error_code& error) {
  return error == net::error::no_descriptors || error.value() == ENFILE || error.value() == ENOBUFS;
}

net::awaitable<ProbeOutcome> ask(tcp::endpoint endpoint, std::string request) {
  const auto executor = co_await net::this_coro::executor;
  tcp::socket socket(executor);
  const auto [connect_error] = co_await socket.async_connect(endpoint, kUseTuple);
  if (connect_error) co_return ProbeOutcome{"connect: " + connect_error.message(), is_ours(connect_error)};
  const auto [write_error, written] = co_await net::async_write(socket, net::buffer(request), kUseTuple);
  if (write_error) co_return ProbeOutcome{"send: " + write_error.message()};
  std::string answer;
  const auto [read_error, size] =
      co_await net::async_read_until(socket, net::dynamic_buffer(answer, kMaxStatusLine), "\r\n", kUseTuple);
  if (read_error) co_return ProbeOutcome{"receive: " + read_error.message()};
  co_return ProbeOutcome{verdict_on(answer)};
}

net::awaitable<void> wait_for(std::chrono::milliseconds time) {
  net::steady_timer timer(co_await net::this_coro::executor, time);
  co_await timer.async_wait(kUseTuple);
}

}  // namespace

std::chrono::milliseconds first_pause(std::uint64_t worker_id, std::chrono::milliseconds interval) {
  constexpr std::uint64_t kSteps = 1024;
  return interval / 2 + interval * static_cast<std::int64_t>(worker_id % kSteps) / (2 * kSteps);
}

net::awaitable<ProbeOutcome> probe_health(tcp::endpoint endpoint, std::string path,
                                          std::chrono::milliseconds timeout) {
  using net::experimental::awaitable_operators::operator||;
  const std::string authority = socket_address(endpoint.address().to_string(), endpoint.port());
  std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + authority +
                        "\r\nUser-Agent: handoff-epp\r\nAccept: */*\r\nConnection: close\r\n\r\n";
  auto outcome = co_await (ask(endpoint, std::move(request)) || wait_for(timeout));
  if (outcome.index() == 1)
    co_return ProbeOutcome{"no answer within " + std::to_string(timeout.count()) + " ms"};
  co_return std::get<0>(std::move(outcome));
}

}  // namespace handoff::epp
