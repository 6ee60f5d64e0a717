#include "epp/tokenization/service_client.hpp"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <utility>

namespace handoff::epp {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = net::ip::tcp;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;
constexpr auto kTuple = net::as_tuple(net::use_awaitable);

// vLLM's server closes after five idle seconds; one that is about to close must not be used.
constexpr std::chrono::seconds kMaxIdle{4};
constexpr std::size_t kMaxKept = 64;
constexpr std::uint32_t kMaxHeadBytes = 64 * 1024;
constexpr int kAttempts = 2;
constexpr int kMostInterimAnswers = 16;

}  // namespace

struct ServiceClient::Connection {
  explicit Connection(net::io_context& loop) : stream(loop) {}

  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  Clock::time_point idle_since;
  bool may_be_kept = false;  // after the last answer

  // Nobody asked for what comes now: whoever asks next would take it for the answer.
  bool has_more_than_asked_for() {
    ErrorCode ec;
    return buffer.size() > 0 || stream.socket().available(ec) > 0 || ec;
  }
};

ServiceClient::ServiceClient(net::io_context& loop, ServiceUrl url, std::size_t max_answer_bytes)
    : loop_(loop), url_(std::move(url)), max_answer_bytes_(max_answer_bytes) {}

ServiceClient::~ServiceClient() = default;

net::awaitable<ServiceAnswer> ServiceClient::post(std::string path, std::shared_ptr<const std::string> body,
                                                  Deadline deadline) {
  std::string head =
      "POST " + url_.prefix + path + " HTTP/1.1\r\nHost: " + url_.authority +
      "\r\nContent-Type: application/json\r\nAccept: application/json\r\nUser-Agent: handoff-epp"
      "\r\nContent-Length: " +
      std::to_string(body->size()) + "\r\n\r\n";
  ServiceAnswer answer;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::unique_ptr<Connection> connection;
    if (attempt == 0) connection = take_kept();
    if (!connection) {
      connection = std::make_unique<Connection>(loop_);
      answer = co_await connect(*connection, deadline);
      if (answer.outcome == ServiceAnswer::Outcome::kTimeout) co_return answer;
      if (answer.outcome != ServiceAnswer::Outcome::kAnswered) continue;
    }
    answer = co_await exchange(*connection, head, body, deadline);
    if (answer.outcome == ServiceAnswer::Outcome::kAnswered) {
      if (connection->may_be_kept) keep(std::move(connection));
      co_return answer;
    }
    if (answer.outcome == ServiceAnswer::Outcome::kTimeout ||
        answer.outcome == ServiceAnswer::Outcome::kTooLarge)
      co_return answer;
  }
  co_return answer;
}

std::unique_ptr<ServiceClient::Connection> ServiceClient::take_kept() {
  const auto oldest = Clock::now() - kMaxIdle;
  std::erase_if(kept_, [&](const auto& one) { return one->idle_since < oldest; });
  while (!kept_.empty()) {
    auto connection = std::move(kept_.back());
    kept_.pop_back();
    if (!connection->has_more_than_asked_for()) return connection;
  }
  return nullptr;
}

void ServiceClient::keep(std::unique_ptr<Connection> connection) {
  if (kept_.size() >= kMaxKept) kept_.erase(kept_.begin());
  connection->idle_since = Clock::now();
  connection->stream.expires_never();
  kept_.push_back(std::move(connection));
}

// kAnswered: connected.
net::awaitable<ServiceAnswer> ServiceClient::connect(Connection& connection, Deadline deadline) {
  ServiceAnswer out;
  tcp::resolver resolver(loop_);
  const auto [resolve_error, found] = co_await resolver.async_resolve(url_.host, url_.port, kTuple);
  if (resolve_error) {
    out.detail = "resolve " + url_.host + ": " + resolve_error.message();
    co_return out;
  }
  connection.stream.expires_at(deadline);
  const auto [connect_error, endpoint] = co_await connection.stream.async_connect(found, kTuple);
  if (connect_error) {
    if (connect_error == beast::error::timeout) out.outcome = ServiceAnswer::Outcome::kTimeout;
    out.detail = "connect: " + connect_error.message();
    co_return out;
  }
  ErrorCode ignored;
  connection.stream.socket().set_option(tcp::no_delay(true), ignored);
  out.outcome = ServiceAnswer::Outcome::kAnswered;
  co_return out;
}

net::awaitable<ServiceAnswer> ServiceClient::exchange(Connection& connection, std::string head,
                                                      std::shared_ptr<const std::string> body,
                                                      Deadline deadline) {
  ServiceAnswer out;
  out.outcome = ServiceAnswer::Outcome::kBroken;
  connection.stream.expires_at(deadline);
  const std::array<net::const_buffer, 2> request{net::buffer(head), net::buffer(*body)};
  // A service that answers before it has read everything may close then: its answer still counts.
  const auto [write_error, written] = co_await net::async_write(connection.stream, request, kTuple);
  if (write_error == beast::error::timeout) {
    out.outcome = ServiceAnswer::Outcome::kTimeout;
    co_return out;
  }
  std::optional<http::response_parser<http::string_body>> parser;
  for (int interim = 0;; ++interim) {
    if (interim > kMostInterimAnswers) {
      out.detail = "more than " + std::to_string(kMostInterimAnswers) + " interim answers";
      co_return out;
    }
    parser.emplace();
    parser->header_limit(kMaxHeadBytes);
    parser->body_limit(max_answer_bytes_);
    const auto [read_error, size] =
        co_await http::async_read(connection.stream, connection.buffer, *parser, kTuple);
    if (read_error == beast::error::timeout) {
      out.outcome = ServiceAnswer::Outcome::kTimeout;
      co_return out;
    }
    if (read_error == http::error::body_limit || read_error == http::error::header_limit) {
      out.outcome = ServiceAnswer::Outcome::kTooLarge;
      out.detail = "larger than " + std::to_string(max_answer_bytes_) + " bytes";
      co_return out;
    }
    if (read_error) {
      out.detail = "receive: " + read_error.message();
      co_return out;
    }
    const unsigned status = parser->get().result_int();
    if (status == 101) {  // nothing asked for it, and what follows is no HTTP
      out.detail = "switches protocols";
      co_return out;
    }
    if (status >= 200) break;  // before that, the answer is still to come
  }
  out.outcome = ServiceAnswer::Outcome::kAnswered;
  out.status = parser->get().result_int();
  connection.may_be_kept = parser->keep_alive() && !write_error && !connection.has_more_than_asked_for();
  out.body = std::move(parser->get().body());
  co_return out;
}

}  // namespace handoff::epp
