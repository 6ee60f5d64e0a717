#include "http_ask.hpp"

#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>

namespace handoff::mock {
namespace {

constexpr std::size_t kMaxReply = 65536;

}  // namespace

std::string http_request_text(const std::string& method, const std::string& target, const std::string& body) {
  return method + " " + target + " HTTP/1.1\r\nHost: bootstrap\r\nConnection: close\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

Awaitable<std::optional<HttpReply>> ask_http(std::string host, std::uint16_t port, std::string request) {
  const auto executor = co_await net::this_coro::executor;
  tcp::resolver resolver(executor);
  auto [resolve_error, found] = co_await resolver.async_resolve(host, std::to_string(port), kTuple);
  if (resolve_error) co_return std::nullopt;
  tcp::socket socket(executor);
  auto [connect_error, endpoint] = co_await net::async_connect(socket, found, kTuple);
  if (connect_error) co_return std::nullopt;
  auto [write_error, written] = co_await net::async_write(socket, net::buffer(request), kTuple);
  if (write_error) co_return std::nullopt;
  std::string reply;
  auto [read_error, size] =
      co_await net::async_read(socket, net::dynamic_buffer(reply, kMaxReply), net::transfer_all(), kTuple);
  if (read_error != net::error::eof) co_return std::nullopt;
  const std::size_t end = reply.find("\r\n\r\n");
  if (end == std::string::npos || reply.size() < 12) co_return std::nullopt;
  HttpReply out{std::atoi(reply.c_str() + 9), reply.substr(end + 4)};
  co_return out;
}

}  // namespace handoff::mock
