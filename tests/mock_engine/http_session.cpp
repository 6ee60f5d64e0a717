#include "http_session.hpp"

#include <poll.h>

#include <array>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdio>
#include <exception>
#include <utility>

#include "personality.hpp"

namespace handoff::mock {
namespace {

namespace http = boost::beast::http;
// The check does not see uses within co_await.
using net::experimental::awaitable_operators::operator||;  // NOLINT(misc-unused-using-decls)

constexpr std::size_t kMaxBody = std::size_t{64} << 20;
constexpr std::uint32_t kMaxHead = 256 * 1024;

// Name and value of each line, in order and with duplicates, which Beast's container does not keep.
HeaderList raw_headers(const std::string& head) {
  HeaderList headers;
  std::size_t at = head.find("\r\n");
  while (at != std::string::npos && at + 2 < head.size()) {
    const std::size_t from = at + 2;
    at = head.find("\r\n", from);
    const std::string line = head.substr(from, at - from);
    if (line.empty()) break;
    const std::size_t colon = std::min(line.find(':'), line.size());
    std::size_t value = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
    std::size_t end = line.find_last_not_of(" \t");
    headers.emplace_back(line.substr(0, colon), value > end ? "" : line.substr(value, end + 1 - value));
  }
  return headers;
}

bool has_left(int descriptor) {
  pollfd state{descriptor, POLLRDHUP, 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

// Whether two waits for either of two things were given up together.
bool was_abandoned(const std::exception& error) {
  const auto* both = dynamic_cast<const net::multiple_exceptions*>(&error);
  if (both == nullptr) return false;
  try {
    std::rethrow_exception(both->first_exception());
  } catch (const boost::system::system_error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

// One request while it is read and answered.
struct HttpSession::Incoming {
  http::request_parser<http::string_body> parser;
  std::string raw_head;
  std::shared_ptr<LoggedRequest> log;
  ResponseTerms terms;
  std::string path;
  std::string query;
  bool unseen = false;  // not traffic of the engine: no log, no counters, no faults
};

HttpSession::HttpSession(Services& services, tcp::socket socket, std::int64_t id, Door door)
    : services_(services), socket_(std::move(socket)), id_(id), door_(door) {}

void HttpSession::reset() {
  ErrorCode ignored;
  socket_.set_option(net::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
}

Awaitable<void> HttpSession::run() {
  const auto self = shared_from_this();
  ErrorCode ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  try {
    bool more = true;
    while (more && socket_.is_open()) more = co_await serve_one();
    co_await close_gently();
  } catch (const ConnectionEnded&) {
    // The peer left while it was being refused.
  }
}

Awaitable<bool> HttpSession::serve_one() {
  Incoming incoming;
  if (buffer_.empty()) {
    const bool arrived = co_await wait_for_request();
    if (!arrived) co_return false;
  }
  ReadResult result = co_await read_head(incoming);
  if (result == ReadResult::kRequest && !incoming.unseen) {
    const FaultSubject subject{incoming.log->method, incoming.path, &incoming.log->headers, std::nullopt};
    const FaultPlan plan = services_.faults.plan_for(subject);
    if (plan.early) {
      ++services_.engine.counters().fault_hits;
      co_await answer_early(incoming, *plan.early);
      co_return false;
    }
  }
  if (result == ReadResult::kRequest) result = co_await read_body(incoming);
  switch (result) {
    case ReadResult::kRequest:
      break;
    case ReadResult::kEnd:
      co_return false;
    case ReadResult::kMalformed:
      co_await refuse(400, "Invalid HTTP request received.");
      co_return false;
    case ReadResult::kTooLarge:
      co_await refuse(413, "Request Entity Too Large");
      co_return false;
  }
  const bool keep = co_await answer(incoming);
  co_return keep;
}

Awaitable<bool> HttpSession::read_some() {
  std::array<char, 65536> chunk;
  auto [error, size] = co_await socket_.async_read_some(net::buffer(chunk), kTuple);
  if (error) co_return false;
  buffer_.append(chunk.data(), size);
  co_return true;
}

Awaitable<bool> HttpSession::wait_for_request() {
  // Only the engine's own port has an idle limit: a test may keep its connection.
  const auto limit =
      door_ == Door::kEngine ? services_.config.keep_alive : std::chrono::milliseconds(std::chrono::hours(1));
  const auto result = co_await (read_some() || sleep_for(limit));
  co_return result.index() == 0 && std::get<0>(result);
}

Awaitable<HttpSession::ReadResult> HttpSession::read_head(Incoming& incoming) {
  auto& parser = incoming.parser;
  parser.eager(false);
  parser.header_limit(kMaxHead);
  parser.body_limit(kMaxBody);
  while (!parser.is_header_done()) {
    ErrorCode error;
    const std::size_t used = buffer_.empty() ? 0 : parser.put(net::buffer(buffer_), error);
    incoming.raw_head.append(buffer_, 0, used);
    buffer_.erase(0, used);
    if (error && error != http::error::need_more) co_return ReadResult::kMalformed;
    if (parser.is_header_done()) break;
    const bool arrived = co_await read_some();
    if (!arrived) co_return ReadResult::kEnd;
  }
  const auto& head = parser.get();
  const std::string target(head.target());
  const std::size_t mark = std::min(target.find('?'), target.size());
  incoming.path = target.substr(0, mark);
  incoming.query = mark < target.size() ? target.substr(mark + 1) : "";
  incoming.unseen = incoming.path.starts_with("/mock/") || door_ == Door::kPeer;
  incoming.terms.http10 = head.version() < 11;
  incoming.terms.keep_alive = head.keep_alive();
  incoming.terms.accepts_gzip = http::token_list(head[http::field::accept_encoding]).exists("gzip");
  incoming.log = incoming.unseen ? std::make_shared<LoggedRequest>() : services_.log.open(id_);
  LoggedRequest& log = *incoming.log;
  log.method = std::string(head.method_string());
  log.target = target;
  log.version = head.version() < 11 ? "1.0" : "1.1";
  log.headers = raw_headers(incoming.raw_head);
  log.framing = parser.chunked() ? "chunked" : parser.content_length() ? "content-length" : "none";
  if (!incoming.unseen) {
    Counters& counters = services_.engine.counters();
    ++counters.received;
    // Bounded: hostile paths must not grow the map for ever.
    if (counters.by_path.size() < 1000 || counters.by_path.contains(incoming.path))
      ++counters.by_path[incoming.path];
    services_.engine.notify();
  }
  co_return ReadResult::kRequest;
}

Awaitable<HttpSession::ReadResult> HttpSession::read_body(Incoming& incoming) {
  auto& parser = incoming.parser;
  if (http::token_list(parser.get()[http::field::expect]).exists("100-continue") && buffer_.empty()) {
    const std::string text = "HTTP/1.1 100 Continue\r\n\r\n";
    auto [error, size] = co_await net::async_write(socket_, net::buffer(text), kTuple);
    if (error) co_return ReadResult::kEnd;
  }
  parser.eager(true);
  bool fresh = true;
  while (!parser.is_done()) {
    ErrorCode error;
    if (fresh && !buffer_.empty()) {
      const std::size_t used = parser.put(net::buffer(buffer_), error);
      buffer_.erase(0, used);
    }
    if (error == http::error::body_limit) co_return ReadResult::kTooLarge;
    if (error && error != http::error::need_more) co_return ReadResult::kMalformed;
    if (parser.is_done()) break;
    fresh = co_await read_some();
    if (!fresh) {
      incoming.log->outcome = "aborted";
      co_return ReadResult::kEnd;
    }
  }
  incoming.log->body = std::move(parser.get().body());
  if (!incoming.unseen) {
    if (const auto body = parse_json(incoming.log->body))
      incoming.log->leg = services_.personality->leg_of(*body);
    services_.log.body_complete(*incoming.log);
    services_.engine.notify();
  }
  co_return ReadResult::kRequest;
}

Awaitable<bool> HttpSession::answer(Incoming& incoming) {
  LoggedRequest& log = *incoming.log;
  FaultPlan plan;
  if (!incoming.unseen) plan = services_.faults.plan_for({log.method, incoming.path, &log.headers, log.leg});
  if (plan.any) ++services_.engine.counters().fault_hits;
  ResponseWriter writer(socket_, incoming.terms, plan);
  Exchange exchange{services_, log, plan, writer, incoming.path, incoming.query};
  // Ends of a request that did not run to its end: the peer left, or a fault closed the connection.
  struct Closing {
    LoggedRequest& log;
    ResponseWriter& writer;
    Engine& engine;
    const char* outcome = "aborted";
    ~Closing() {
      if (engine.config().verbose) {
        std::fprintf(stderr, "%s %s -> %d %s\n", log.method.c_str(), log.target.c_str(), writer.status(),
                     outcome);
      }
      log.status = writer.status();
      log.end_ms = RequestLog::now_ms();
      log.outcome = outcome;
      engine.notify();
    }
  } closing{log, writer, services_.engine};
  if (plan.any && (plan.cut || plan.die)) closing.outcome = "fault";
  const auto result = co_await (dispatch_to_end(exchange, plan) || peer_left());
  if (result.index() == 1) co_return false;
  const AnswerEnd end = std::get<0>(result);
  if (end == AnswerEnd::kReset) reset();
  if (end != AnswerEnd::kDone) co_return false;
  closing.outcome = "finished";
  co_return writer.keep_alive() && !plan.close_idle;
}

// No exception may leave this: operator|| would take it for "not successful" and go on waiting for
// peer_left().
Awaitable<HttpSession::AnswerEnd> HttpSession::dispatch_to_end(Exchange& exchange, const FaultPlan& plan) {
  try {
    co_await dispatch(exchange, plan);
  } catch (const ConnectionEnded& ended) {
    co_return ended.reset ? AnswerEnd::kReset : AnswerEnd::kClose;
  } catch (const boost::system::system_error&) {
    // Abandoned while it waited for something; destructors have settled the request.
    co_return AnswerEnd::kClose;
  } catch (const std::exception& error) {
    if (was_abandoned(error)) co_return AnswerEnd::kClose;
    std::fprintf(stderr, "mock-engine: %s: %s\n", exchange.path.c_str(), error.what());
    co_return AnswerEnd::kReset;
  }
  co_return AnswerEnd::kDone;
}

Awaitable<void> HttpSession::dispatch(Exchange& exchange, const FaultPlan& plan) {
  if (exchange.path.starts_with("/mock/")) {
    co_await serve_control_route(exchange);
    co_return;
  }
  if (door_ == Door::kPeer) {
    co_await services_.personality->serve_peer(exchange);
    co_return;
  }
  if (door_ == Door::kControl) {
    co_await answer_json(exchange, 404, R"({"error":"this is the control port"})");
    co_return;
  }
  if (plan.die) services_.die();
  while (plan.stall) co_await sleep_for(std::chrono::hours(1));
  if (plan.informational) co_await exchange.writer.informational(*plan.informational);
  if (plan.reply) {
    co_await sleep_for(plan.delay_before + plan.delay_after);
    co_await exchange.writer.full(plan.reply->status, plan.reply->content_type, plan.reply->headers,
                                  plan.reply->body);
    co_return;
  }
  co_await services_.personality->serve(exchange);
}

Awaitable<void> HttpSession::answer_early(Incoming& incoming, CannedReply reply) {
  incoming.terms.keep_alive = false;
  const FaultPlan sound;
  ResponseWriter writer(socket_, incoming.terms, sound);
  co_await writer.full(reply.status, reply.content_type, reply.headers, reply.body);
  incoming.log->status = reply.status;
  incoming.log->end_ms = RequestLog::now_ms();
  incoming.log->outcome = "fault";
}

// Completes when the peer has closed its side. An ASGI server treats a half-close like that too.
Awaitable<void> HttpSession::peer_left() {
  while (true) {
    auto [error] = co_await socket_.async_wait(tcp::socket::wait_read, kTuple);
    if (error || has_left(socket_.native_handle())) co_return;
    // Bytes of a pipelined request: they stay readable, so look again a little later.
    co_await sleep_for(std::chrono::milliseconds(5));
  }
}

Awaitable<void> HttpSession::refuse(int status, std::string text) {
  const FaultPlan sound;
  ResponseWriter writer(socket_, ResponseTerms{false, false, false}, sound);
  co_await writer.full(status, "text/plain; charset=utf-8", {}, std::move(text));
}

Awaitable<void> HttpSession::close_gently() {
  // FIN first and read what is still coming for a moment: closing with unread bytes would be a RST that can
  // destroy the response on its way.
  ErrorCode error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  if (error) co_return;
  const auto until = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < until) {
    const auto result = co_await (read_some() || sleep_for(std::chrono::milliseconds(250)));
    buffer_.clear();
    if (result.index() == 1 || !std::get<0>(result)) break;
  }
}

}  // namespace handoff::mock
