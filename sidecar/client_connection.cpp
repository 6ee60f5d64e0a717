#include "sidecar/client_connection.hpp"

#include <algorithm>
#include <utility>
#include "sidecar/give_memory_back.hpp"

namespace handoff::sidecar {
namespace {

constexpr milliseconds kDeparturePoll{500};
constexpr milliseconds kLingerTime{2000};
constexpr std::size_t kLingerBytes = 1024 * 1024;

}  // namespace

ClientConnection::ClientConnection(DeadlineQueue& deadlines, Socket socket, milliseconds write_timeout)
    : transport_(std::move(socket)),
      write_timeout_(write_timeout),
      readable_(transport_.executor()),
      deadline_(deadlines, [this] {
        timed_out_ = true;
        if (waiting_) readable_.notify();
        if (unsent() > 0) transport_.cancel_waits();
      }) {
  transport_.on_readable([this] { on_readable(); });
}

void ClientConnection::on_readable() {
  if (waiting_) {
    readable_.notify();
  } else if (on_gone_) {
    check_for_departure();
  }
}

void ClientConnection::check_for_departure() {
  if (!transport_.peer_has_closed()) {
    // The next request came early, and lies unread until its turn. Readability says nothing any more, so look
    // at times.
    if (!departure_poll_) {
      departure_poll_.emplace(deadline_.queue(), [this] {
        if (on_gone_) check_for_departure();
      });
    }
    departure_poll_->arm(kDeparturePoll);
    return;
  }
  leave();
}

void ClientConnection::leave() {
  gone_ = true;
  transport_.cancel_waits();
  if (const auto tell = std::exchange(on_gone_, nullptr)) tell();
}

void ClientConnection::watch(std::function<void()> on_gone) {
  on_gone_ = std::move(on_gone);
  if (!inbox.empty() || !transport_.seems_quiet()) {
    check_for_departure();
  } else {
    transport_.tell_when_readable();
  }
}

void ClientConnection::unwatch() {
  on_gone_ = nullptr;
  if (departure_poll_) departure_poll_->disarm();
}

Awaitable<ClientEvent> ClientConnection::wait_for_bytes(milliseconds limit) {
  if (stopped_) co_return ClientEvent::stopped;
  if (gone_) co_return ClientEvent::gone;
  if (transport_.seems_quiet()) {
    timed_out_ = false;
    waiting_ = true;
    readable_.clear();
    transport_.tell_when_readable();
    deadline_.arm(limit);
    co_await readable_.wait();
    deadline_.disarm();
    waiting_ = false;
    if (on_gone_) transport_.tell_when_readable();  // the wait for departure goes on
    if (!transport_.may_be_readable()) {
      if (stopped_) co_return ClientEvent::stopped;
      if (gone_) co_return ClientEvent::gone;
      co_return timed_out_ ? ClientEvent::timed_out : ClientEvent::gone;
    }
  }
  co_return ClientEvent::readable;
}

bool ClientConnection::try_send(std::string_view bytes) {
  if (!gone_ && unsent() == 0) {  // one plain send, the way of almost every event of a stream
    const auto written = transport_.try_write(bytes.data(), bytes.size());
    if (written.status == IoStatus::ok) {
      bytes_sent_ += written.size;
      if (written.size == bytes.size()) return true;
      bytes.remove_prefix(written.size);
    }
  }
  const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  return try_send({&piece, 1});
}

bool ClientConnection::try_send(std::span<const iovec> pieces) {
  if (gone_) return false;
  std::size_t at = 0;
  std::size_t offset = 0;  // within pieces[at]
  if (unsent() == 0) {
    while (at < pieces.size()) {
      IoResult written;
      if (offset == 0) {
        written = transport_.try_write(pieces.subspan(at));
      } else {
        written = transport_.try_write(static_cast<const char*>(pieces[at].iov_base) + offset,
                                       pieces[at].iov_len - offset);
      }
      if (written.status == IoStatus::would_block) break;
      if (written.status != IoStatus::ok) {
        leave();
        return false;
      }
      bytes_sent_ += written.size;
      auto left = written.size + offset;
      offset = 0;
      while (at < pieces.size() && left >= pieces[at].iov_len) left -= pieces[at++].iov_len;
      offset = left;
    }
  }
  for (; at < pieces.size(); ++at, offset = 0) {
    unsent_.append(static_cast<const char*>(pieces[at].iov_base) + offset, pieces[at].iov_len - offset);
  }
  return unsent() == 0;
}

Awaitable<bool> ClientConnection::flush() {
  timed_out_ = false;
  while (unsent() > 0 && !gone_) {
    const auto written = transport_.try_write(unsent_.data() + unsent_at_, unsent());
    if (written.status == IoStatus::ok) {
      unsent_at_ += written.size;
      bytes_sent_ += written.size;
      continue;
    }
    if (written.status != IoStatus::would_block) {
      leave();
      break;
    }
    // The kernel calls a socket writable when a third of its buffer is free: whoever takes less in that time
    // is slow, and only who takes nothing has stopped.
    const auto before = transport_.in_flight();
    deadline_.arm(write_timeout_);
    co_await transport_.wait_writable();
    deadline_.disarm();
    if (std::exchange(timed_out_, false) && transport_.in_flight() >= before) leave();
  }
  if (gone_) co_return false;
  unsent_.clear();
  unsent_at_ = 0;
  if (unsent_.capacity() > 4096) give_memory_back(unsent_);
  co_return true;
}

void ClientConnection::stop() {
  stopped_ = true;
  if (waiting_) readable_.notify();
}

void ClientConnection::abandon() {
  on_gone_ = nullptr;
  gone_ = true;
  transport_.cancel_waits();
  if (waiting_) readable_.notify();
}

Awaitable<> ClientConnection::linger_and_close(std::span<char> scratch) {
  transport_.shutdown_send();
  const auto end = Clock::now() + kLingerTime;
  std::size_t dropped = 0;
  stopped_ = false;
  while (dropped < kLingerBytes) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (left.count() <= 0) break;
    const auto event = co_await wait_for_bytes(left);
    if (event != ClientEvent::readable) break;
    const auto got = try_read(scratch);
    if (got.status == IoStatus::would_block) continue;
    if (got.status != IoStatus::ok) break;
    dropped += got.size;
  }
  close();
}

}  // namespace handoff::sidecar
