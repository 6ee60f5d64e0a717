// The floor of a P/D request: one epoll thread that makes the sends and receives of two legs, and nothing
// else. A request with `x-prefiller-host-port` goes to that engine first and to the decode engine after its
// answer, or with `--at-once 1` to both, and decode's answer waits for prefill's. Any other goes to the
// decode engine. As in the sidecar, a request is taken whole before it is sent.
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "arguments.hpp"
#include "http_reader.hpp"
#include "loopback.hpp"

namespace {

using bench::Fd;
using bench::HttpReader;

constexpr std::string_view kAskForHandoff = R"({"kv_transfer_params":{"do_remote_decode":true},)";
constexpr std::string_view kUseHandoff = R"({"kv_transfer_params":{"do_remote_prefill":true},)";
constexpr std::string_view kPrefillHeader = "x-prefiller-host-port: 127.0.0.1:";
constexpr std::string_view kLengthHeader = "Content-Length: ";
constexpr std::size_t kMaxRequest = 1024U * 1024U;

class Exchange;

struct End {
  Exchange* exchange = nullptr;
  Fd fd;
  HttpReader reply_reader{HttpReader::Role::responses};
  std::string leg_head;
  std::vector<iovec> pieces;  // of the request that is being sent
  bool waits_to_send = false;
};

// A client connection with its own kept connection to each engine.
class Exchange {
 public:
  Exchange(Fd client, std::uint16_t decode_port, bool at_once, bench::Poller& poller)
      : poller_(poller), at_once_(at_once) {
    client_.fd = std::move(client);
    decode_.fd = bench::connect_to_loopback(decode_port);
    request_.reset(new char[kMaxRequest]);  // untouched memory costs nothing
    for (End* end : {&client_, &decode_}) watch(*end);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  bool is_usable() const { return static_cast<bool>(decode_.fd); }

  // False when it is over.
  bool on_event(End& end, std::uint32_t events, std::vector<char>& buffer) {
    if ((events & EPOLLOUT) != 0) return send_rest(end);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return true;
    return &end == &client_ ? read_request() : read_reply(end, buffer);
  }

 private:
  void watch(End& end) {
    end.exchange = this;
    poller_.add(end.fd.get(), EPOLLIN, &end);
  }

  bool read_request() {
    const ssize_t received = recv(client_.fd.get(), request_.get() + size_, kMaxRequest - size_, 0);
    if (received < 0) return errno == EAGAIN || errno == EINTR;
    if (received == 0) return false;
    std::string_view input(request_.get() + size_, static_cast<std::size_t>(received));
    size_ += input.size();
    for (;;) {
      const auto step = request_reader_.next(input);
      if (step.kind == HttpReader::Kind::need_more) return size_ < kMaxRequest;
      if (step.kind == HttpReader::Kind::malformed) return false;
      if (step.kind == HttpReader::Kind::end) break;
    }
    const std::string_view whole(request_.get(), size_);
    head_ = whole.substr(0, request_reader_.head().size() + 2);
    body_ = whole.substr(head_.size());
    size_ = 0;
    const std::size_t at = head_.find(kPrefillHeader);
    if (at == std::string_view::npos) {
      decode_.pieces = {{request_.get(), whole.size()}};
      return send_rest(decode_);
    }
    if (!prefill_.fd) {
      std::uint16_t port = 0;
      const std::string_view digits = head_.substr(at + kPrefillHeader.size());
      std::from_chars(digits.data(), digits.data() + digits.size(), port);
      prefill_.fd = bench::connect_to_loopback(port);
      if (!prefill_.fd) return false;
      watch(prefill_);
    }
    prefill_runs_ = true;
    return send_leg(prefill_, kAskForHandoff) && (!at_once_ || send_leg(decode_, kUseHandoff));
  }

  // The client's request with a member more.
  bool send_leg(End& to, std::string_view member) {
    const std::size_t at = head_.find(kLengthHeader) + kLengthHeader.size();
    const std::size_t end = head_.find('\r', at);
    if (at < kLengthHeader.size() || end == std::string_view::npos || body_.empty()) return false;
    to.leg_head.assign(head_.substr(0, at));
    to.leg_head.append(std::to_string(body_.size() - 1 + member.size())).append(head_.substr(end));
    to.leg_head.append(member);
    to.pieces = {{to.leg_head.data(), to.leg_head.size()},
                 {const_cast<char*>(body_.data()) + 1, body_.size() - 1}};
    return send_rest(to);
  }

  bool send_rest(End& to) {
    std::size_t done = 0;
    while (done < to.pieces.size()) {
      msghdr message{};
      message.msg_iov = to.pieces.data() + done;
      message.msg_iovlen = to.pieces.size() - done;
      const ssize_t sent = sendmsg(to.fd.get(), &message, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent < 0) break;
      auto left = static_cast<std::size_t>(sent);
      while (done < to.pieces.size() && left >= to.pieces[done].iov_len) left -= to.pieces[done++].iov_len;
      if (done == to.pieces.size()) break;
      to.pieces[done].iov_base = static_cast<char*>(to.pieces[done].iov_base) + left;
      to.pieces[done].iov_len -= left;
    }
    to.pieces.erase(to.pieces.begin(), to.pieces.begin() + static_cast<std::ptrdiff_t>(done));
    const bool must_wait = !to.pieces.empty();
    if (must_wait != to.waits_to_send) {
      poller_.modify(to.fd.get(), must_wait ? EPOLLIN | EPOLLOUT : EPOLLIN, &to);
      to.waits_to_send = must_wait;
    }
    return true;
  }

  bool read_reply(End& from, std::vector<char>& buffer) {
    const ssize_t received = recv(from.fd.get(), buffer.data(), buffer.size(), 0);
    if (received < 0) return errno == EAGAIN || errno == EINTR;
    if (received == 0) return false;
    std::string_view input(buffer.data(), static_cast<std::size_t>(received));
    bool complete = false;
    while (!complete) {
      const auto step = from.reply_reader.next(input);
      if (step.kind == HttpReader::Kind::need_more) break;
      if (step.kind == HttpReader::Kind::malformed) return false;
      complete = step.kind == HttpReader::Kind::end;
    }
    if (&from == &prefill_) return !complete || on_prefill_done();
    if (prefill_runs_) {
      held_.append(buffer.data(), static_cast<std::size_t>(received));
      return true;
    }
    return send_answer({buffer.data(), static_cast<std::size_t>(received)});
  }

  bool on_prefill_done() {
    prefill_runs_ = false;
    if (!at_once_) return send_leg(decode_, kUseHandoff);
    const bool sent = held_.empty() || send_answer(held_);
    held_.clear();
    return sent;
  }

  // A client that does not take an answer of this size at once is not one of the rig's.
  bool send_answer(std::string_view bytes) {
    return send(client_.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  }

  bench::Poller& poller_;
  const bool at_once_;
  End client_, prefill_, decode_;
  HttpReader request_reader_{HttpReader::Role::requests};
  std::unique_ptr<char[]> request_;
  std::size_t size_ = 0;
  std::string_view head_, body_;  // of the request that is being served
  std::string held_;              // decode's answer, until prefill is done
  bool prefill_runs_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--port", "--upstream-port", "--at-once"});
  const auto port = static_cast<std::uint16_t>(arguments.number("--port", 0, 0, 65535));
  const auto decode_port = static_cast<std::uint16_t>(arguments.number("--upstream-port", 0, 1, 65535));
  const bool at_once = arguments.number("--at-once", 0, 0, 1) == 1;
  bench::raise_fd_limit();
  bench::Listener listener = bench::listen_on_loopback(port);
  std::printf("listening port=%u\n", listener.port);
  std::fflush(stdout);
  bench::Poller poller;
  poller.add(listener.fd.get(), EPOLLIN, nullptr);
  std::vector<char> buffer(64U * 1024U);
  std::unordered_set<Exchange*> over;
  epoll_event events[256];
  for (;;) {
    const int count = poller.wait(events, 256, -1);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.ptr == nullptr) {
        while (Fd client = bench::accept_next(listener.fd)) {
          auto exchange = std::make_unique<Exchange>(std::move(client), decode_port, at_once, poller);
          if (exchange->is_usable()) (void)exchange.release();  // freed below
        }
        continue;
      }
      End& end = *static_cast<End*>(events[i].data.ptr);
      if (over.contains(end.exchange)) continue;
      if (!end.exchange->on_event(end, events[i].events, buffer)) over.insert(end.exchange);
    }
    for (Exchange* exchange : over) delete exchange;
    over.clear();
  }
}
