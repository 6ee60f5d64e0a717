#include "epp/kv_index/kv_event_feed.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "epp/kv_index/kv_event_feed_impl.hpp"
#include "shared/telemetry/log.hpp"

namespace handoff::epp {

namespace {

constexpr std::size_t kMessagesPerTurn = 256;
constexpr int kReconnectMs = 100;
constexpr int kMaxReconnectMs = 5000;
constexpr int kHeartbeatMs = 10'000;

KvFeedOptions with_replay_flag(KvFeedOptions options) {
  options.stream.can_replay = !options.replay_endpoint.empty();
  return options;
}

void set_common_options(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::ipv6, true);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(kMaxKvPayloadBytes));
  // A peer that vanished without a word is noticed, and its return is a reconnect.
  socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
  socket.set(zmq::sockopt::heartbeat_timeout, 3 * kHeartbeatMs);
}

std::array<std::byte, 8> big_endian(std::uint64_t value) {
  std::array<std::byte, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (56 - 8 * i));
  return bytes;
}

}  // namespace

KvEventFeed::Impl::Impl(zmq::context_t& context, BlockIndex& index, KvFeedOptions options)
    : context_(context),
      options_(with_replay_flag(std::move(options))),
      applier_(index, options_.applier),
      stream_(options_.stream, applier_),
      events_(context, zmq::socket_type::sub),
      connection_(context, zmq::socket_type::pair) {
  set_common_options(events_);
  events_.set(zmq::sockopt::rcvhwm, options_.receive_high_water_mark);
  events_.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
  events_.set(zmq::sockopt::reconnect_ivl_max, kMaxReconnectMs);
  events_.set(zmq::sockopt::subscribe, "");
  watch_connection();
  if (options_.binds) {
    events_.bind(options_.events_endpoint);
    bound_endpoint_ = events_.get(zmq::sockopt::last_endpoint);
  } else {
    events_.connect(options_.events_endpoint);
  }
}

void KvEventFeed::Impl::watch_connection() {
  static std::atomic<std::uint64_t> next{0};
  const std::string address = "inproc://kv-feed-monitor-" + std::to_string(next.fetch_add(1));
  // When the handshake is over, not when TCP connects: then the subscription is on its way to the publisher.
  constexpr int kWanted = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED;
  if (zmq_socket_monitor(events_.handle(), address.c_str(), kWanted) != 0) throw zmq::error_t();
  connection_.set(zmq::sockopt::linger, 0);
  connection_.connect(address);
}

void KvEventFeed::Impl::watch_with(int epoll, void* key) {
  epoll_ = epoll;
  key_ = key;
  watch(events_);
  watch(connection_);
}

void KvEventFeed::Impl::watch(zmq::socket_t& socket) const {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = key_}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket.get(zmq::sockopt::fd), &event) != 0)
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

void KvEventFeed::Impl::unwatch(zmq::socket_t& socket) const {
  if (epoll_ >= 0) (void)epoll_ctl(epoll_, EPOLL_CTL_DEL, socket.get(zmq::sockopt::fd), nullptr);
}

bool KvEventFeed::Impl::receive(zmq::socket_t& socket, Message& message) {
  message.count = 0;
  for (bool more = true; more; ++message.count) {
    zmq::message_t& frame = message.frames[std::min(message.count, kMaxFrames)];
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) return false;  // frames of a message come together
    more = frame.more();
    if (message.count < kMaxFrames) {
      message.views[message.count] = {static_cast<const std::byte*>(frame.data()), frame.size()};
    }
  }
  return true;
}

// Looked at before a number that does not follow the last one: what a new connection brings must not be taken
// for news of the old one. Not before every batch, because asking an empty socket is a system call.
void KvEventFeed::Impl::take_connection_events(SteadyTime now) {
  while (receive(connection_, connection_message_)) {
    std::uint16_t event = 0;
    if (connection_message_.views[0].size() < sizeof(event)) continue;
    std::memcpy(&event, connection_message_.views[0].data(), sizeof(event));
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      stream_.on_connected(now);
      report_.note(FeedState::following);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
      report_.note(FeedState::disconnected);
    } else if (report_.state() == FeedState::connecting) {
      report_.note(FeedState::unreachable);
    }
  }
}

bool KvEventFeed::Impl::take_live(SteadyTime now) {
  if (!receive(events_, message_)) return false;
  const auto frames = std::span(message_.views).first(std::min(message_.count, kMaxFrames));
  if (const auto message = message_.count <= kMaxFrames ? parse_live_message(frames) : std::nullopt) {
    if (message->sequence != last_sequence_ + 1) take_connection_events(now);
    last_sequence_ = message->sequence;
    stream_.on_batch(message->sequence, message->payload, now);
  } else {
    malformed_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

bool KvEventFeed::Impl::take_replayed(SteadyTime now) {
  if (!replay_ || !receive(*replay_, message_)) return false;
  const auto frames = std::span(message_.views).first(std::min(message_.count, kMaxFrames));
  const auto message = message_.count <= kMaxFrames ? parse_replayed_message(frames) : std::nullopt;
  if (!message) {
    malformed_.fetch_add(1, std::memory_order_relaxed);
    stream_.on_replay_failed(now);
  } else if (message->ends_replay) {
    stream_.on_replay_end(now);
  } else {
    stream_.on_replayed(message->sequence, message->payload, now);
  }
  return true;
}

// A new socket for each replay: what comes late of the last one goes down with its socket. Whether there is
// one now that nobody has asked yet.
bool KvEventFeed::Impl::follow_stream(SteadyTime now) {
  bool is_new = false;
  while (const auto from = stream_.take_replay_request()) {
    ask_for_replay(*from, now);
    is_new = true;
  }
  if (!stream_.is_replaying()) close_replay();
  return is_new;
}

void KvEventFeed::Impl::ask_for_replay(std::uint64_t from, SteadyTime now) {
  close_replay();
  try {
    replay_.emplace(context_, zmq::socket_type::dealer);
    set_common_options(*replay_);
    // Far above any engine's buffer, so that an honest replay is never cut; a hostile one is held up.
    replay_->set(zmq::sockopt::rcvhwm, options_.receive_high_water_mark);
    replay_->connect(options_.replay_endpoint);
    watch(*replay_);
    const auto start = big_endian(from);
    replay_->send(zmq::message_t(), zmq::send_flags::sndmore);
    replay_->send(zmq::buffer(start), zmq::send_flags::dontwait);
  } catch (const std::exception&) {  // ZMQ's or the system's
    stream_.on_replay_failed(now);
  }
}

void KvEventFeed::Impl::close_replay() {
  if (!replay_) return;
  unwatch(*replay_);
  replay_.reset();
}

void KvEventFeed::Impl::silence() {
  const std::lock_guard lock(turn_);
  is_silent_ = true;
}

void KvEventFeed::Impl::close() {
  if (events_.handle() == nullptr) return;
  close_replay();
  unwatch(events_);
  unwatch(connection_);
  events_.close();
  connection_.close();
}

KvEventFeed::Impl::Turn KvEventFeed::Impl::process(const KvFeedPool::Clock& clock) {
  const std::lock_guard lock(turn_);
  if (is_silent_) return Turn::nothing;
  const Turn turn = take_messages(clock);
  report(clock());
  return turn;
}

std::optional<SteadyTime> KvEventFeed::Impl::deadline() const {
  const auto replay = stream_.replay_deadline();
  const auto line = report_.due();
  return replay && line ? std::min(*replay, *line) : replay ? replay : line;
}

KvEventFeed::Impl::Seen KvEventFeed::Impl::seen_now() const {
  const KvStreamCounters& stream = stream_.counters();
  return {.batches = stream.batches,
          .lost_histories = stream.lost_histories,
          .failed_replays = stream.failed_replays,
          .undecodable = stream.undecodable + malformed_messages()};
}

// One line for each change of state; while all goes well, nothing is compared but four numbers.
void KvEventFeed::Impl::report(SteadyTime now) {
  using telemetry::Level;
  const Seen before = std::exchange(seen_, seen_now());
  if (seen_.undecodable != before.undecodable) {
    report_.note(FeedState::undecodable);
  } else if (seen_.failed_replays != before.failed_replays) {
    report_.note(FeedState::replay_failed);
  } else if (seen_.lost_histories != before.lost_histories) {
    report_.note(FeedState::history_lost);
  } else if (seen_.batches != before.batches) {
    report_.note(FeedState::following);
  }
  const auto told = report_.take(now);
  if (!told) return;
  telemetry::LogLine(told->state == FeedState::following ? Level::info : Level::warn, "kv_events")
      .field("endpoint", options_.events_endpoint)
      .field("worker", rank().worker)
      .field("rank", rank().rank)
      .field("state", to_string(told->state))
      .field("batches", seen_.batches)
      .field("lost_histories", seen_.lost_histories)
      .field("failed_replays", seen_.failed_replays)
      .field("undecodable", seen_.undecodable)
      .field("suppressed", told->suppressed);
}

KvEventFeed::Impl::Turn KvEventFeed::Impl::take_messages(const KvFeedPool::Clock& clock) {
  take_connection_events(clock());
  for (std::size_t i = 0; i < kMessagesPerTurn; ++i) {
    const SteadyTime now = clock();
    bool found = take_replayed(now);
    found |= follow_stream(now);
    found |= take_live(now);
    found |= follow_stream(now);
    stream_.on_tick(now);
    found |= follow_stream(now);
    if (!found) return i == 0 ? Turn::nothing : Turn::all;
  }
  return Turn::more;
}

KvEventFeed::KvEventFeed(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvEventFeed::~KvEventFeed() = default;
WorkerRank KvEventFeed::rank() const {
  return impl_->rank();
}
const KvStreamCounters& KvEventFeed::stream_counters() const {
  return impl_->stream_counters();
}
const KvApplierCounters& KvEventFeed::applier_counters() const {
  return impl_->applier_counters();
}
std::uint64_t KvEventFeed::malformed_messages() const {
  return impl_->malformed_messages();
}

}  // namespace handoff::epp
