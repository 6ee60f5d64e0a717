#include "kv_event_publisher.hpp"

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <deque>
#include <optional>
#include <stdexcept>
#include <utility>
#include <zmq.hpp>

#include "kv_event_format.hpp"

namespace handoff::mock {
namespace {

using Bytes = std::vector<std::uint8_t>;

// A free block of neighbouring ports is found by trying.
constexpr int kPortAttempts = 50;

std::array<std::uint8_t, 8> big_endian(std::uint64_t value) {
  std::array<std::uint8_t, 8> bytes{};
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (56 - 8 * i));
  return bytes;
}

std::string endpoint(const std::string& bind, std::uint32_t port) {
  const std::string host = bind == "0.0.0.0"                     ? "*"
                           : bind.find(':') != std::string::npos ? "[" + bind + "]"
                                                                 : bind;
  return "tcp://" + host + ":" + (port == 0 ? "*" : std::to_string(port));
}

std::uint16_t bound_port(const zmq::socket_t& socket) {
  const std::string text = socket.get(zmq::sockopt::last_endpoint);
  return static_cast<std::uint16_t>(std::stoul(text.substr(text.rfind(':') + 1)));
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct KvEventPublisher::Context {
  zmq::context_t zmq;
};

// The sockets of one rank, its numbering and its replay buffer.
class KvEventPublisher::Rank {
 public:
  Rank(KvEventPublisher& publisher, std::uint32_t port, std::optional<std::uint32_t> replay_port)
      : publisher_(publisher), events_(publisher.context_->zmq, zmq::socket_type::pub) {
    const MockConfig& config = publisher.config_;
    const bool v6 = config.bind.find(':') != std::string::npos;
    events_.set(zmq::sockopt::linger, 0);
    events_.set(zmq::sockopt::ipv6, v6 ? 1 : 0);
    events_.set(zmq::sockopt::sndhwm, 100000);
    events_.bind(endpoint(config.bind, port));
    if (!replay_port) return;
    replay_.emplace(publisher.context_->zmq, zmq::socket_type::router);
    replay_->set(zmq::sockopt::linger, 0);
    replay_->set(zmq::sockopt::ipv6, v6 ? 1 : 0);
    replay_->set(zmq::sockopt::sndhwm, 0);  // a ROUTER silently drops at its mark, and replays are long
    replay_->bind(endpoint(config.bind, *replay_port));
    replay_ready_.emplace(publisher.io_, replay_->get(zmq::sockopt::fd));
    wait_for_replays();
  }

  ~Rank() {
    // The descriptor belongs to ZMQ.
    if (replay_ready_) replay_ready_->release();
  }

  std::uint16_t port() const { return bound_port(events_); }
  std::uint16_t replay_port() const { return replay_ ? bound_port(*replay_) : std::uint16_t{0}; }
  std::uint64_t next() const { return next_; }

  void publish(Bytes payload, bool lost) {
    const std::uint64_t sequence = next_++;
    if (!lost) {
      events_.send(zmq::buffer(publisher_.config_.kv_topic), zmq::send_flags::sndmore);
      events_.send(zmq::buffer(big_endian(sequence)), zmq::send_flags::sndmore);
      events_.send(zmq::buffer(payload), zmq::send_flags::none);
    }
    if (!replay_) return;
    buffer_.emplace_back(sequence, std::move(payload));
    if (buffer_.size() > static_cast<std::size_t>(publisher_.config_.kv_replay_batches)) buffer_.pop_front();
  }

 private:
  // The descriptor tells of changes only, so all that is there is taken before the next wait.
  void wait_for_replays() {
    replay_ready_->async_wait(net::posix::descriptor_base::wait_read, [this](ErrorCode ec) {
      if (ec) return;
      while ((replay_->get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) serve_replay();
      wait_for_replays();
    });
  }

  void serve_replay() {
    std::vector<zmq::message_t> frames;
    for (bool more = true; more;) {
      frames.emplace_back();
      if (!replay_->recv(frames.back(), zmq::recv_flags::dontwait)) return;
      more = frames.back().more();
    }
    // Engines insist on [identity, empty, number].
    if (frames.size() != 3 || frames[1].size() != 0 || frames[2].size() != 8) return;
    ++publisher_.counters_.replays;
    std::uint64_t from = 0;
    for (std::size_t i = 0; i < 8; ++i) from = from << 8 | frames[2].data<std::uint8_t>()[i];
    for (const auto& [sequence, payload] : buffer_) {
      if (sequence >= from) reply(frames[0], publisher_.config_.kv_topic, sequence, payload);
    }
    reply(frames[0], "", ~std::uint64_t{0}, {});
  }

  void reply(const zmq::message_t& identity, const std::string& topic, std::uint64_t sequence,
             const Bytes& payload) {
    replay_->send(zmq::buffer(identity.data(), identity.size()), zmq::send_flags::sndmore);
    replay_->send(zmq::message_t(), zmq::send_flags::sndmore);
    if (publisher_.config_.kv_replay_topic) replay_->send(zmq::buffer(topic), zmq::send_flags::sndmore);
    replay_->send(zmq::buffer(big_endian(sequence)), zmq::send_flags::sndmore);
    replay_->send(zmq::buffer(payload), zmq::send_flags::none);
  }

  KvEventPublisher& publisher_;
  zmq::socket_t events_;
  std::optional<zmq::socket_t> replay_;
  std::optional<net::posix::stream_descriptor> replay_ready_;
  std::uint64_t next_ = 0;
  std::deque<std::pair<std::uint64_t, Bytes>> buffer_;
};

KvEventPublisher::KvEventPublisher(net::io_context& io, const MockConfig& config)
    : io_(io), config_(config), port_(config.kv_event_port), replay_port_(config.kv_replay_port.value_or(0)) {
  open();
}

KvEventPublisher::~KvEventPublisher() = default;

void KvEventPublisher::open() {
  const bool chosen = port_ != 0 && (!config_.kv_replay_port || replay_port_ != 0);
  for (int attempt = 0; attempt < (chosen ? 1 : kPortAttempts); ++attempt) {
    if (try_open(port_, replay_port_)) return;
  }
  throw std::runtime_error("the ports of --kv-event-port or --kv-replay-port can't be bound");
}

bool KvEventPublisher::try_open(std::uint16_t port, std::uint16_t replay_port) {
  close();
  context_ = std::make_unique<Context>();
  const bool replays = config_.kv_replay_port.has_value();
  try {
    for (std::int64_t rank = 0; rank < config_.data_parallel_size; ++rank) {
      const auto offset = static_cast<std::uint32_t>(rank);
      const std::uint32_t own = port == 0 ? 0 : port + offset;
      const auto own_replay =
          replays ? std::optional<std::uint32_t>(replay_port == 0 ? 0 : replay_port + offset) : std::nullopt;
      ranks_.push_back(std::make_unique<Rank>(*this, own, own_replay));
      if (rank == 0) {
        port = ranks_.front()->port();
        replay_port = ranks_.front()->replay_port();
      }
    }
  } catch (const zmq::error_t&) {
    close();
    return false;
  }
  port_ = port;
  replay_port_ = replay_port;
  return true;
}

void KvEventPublisher::publish(const std::vector<CacheEvent>& events) {
  std::vector<nlohmann::json> batches(ranks_.size(), nlohmann::json::array());
  for (const CacheEvent& event : events) {
    const auto rank = static_cast<std::size_t>(event.rank);
    if (rank >= ranks_.size()) continue;
    const auto blocks = static_cast<std::int64_t>(event.blocks.size());
    if (event.kind == CacheEvent::Kind::kStored) counters_.stored_blocks += blocks;
    if (event.kind == CacheEvent::Kind::kRemoved) counters_.removed_blocks += blocks;
    if (event.kind == CacheEvent::Kind::kCleared) ++counters_.cleared;
    batches[rank].push_back(
        kv_event_value(event, config_.kv_event_format, config_.kv_hash_kind, config_.block_size));
  }
  for (std::size_t rank = 0; rank < batches.size(); ++rank) {
    if (!batches[rank].empty()) publish_raw(static_cast<std::int64_t>(rank), batches[rank]);
  }
}

void KvEventPublisher::publish_raw(std::int64_t rank, const nlohmann::json& events) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size()) return;
  const bool lost = to_lose_ > 0;
  if (lost) --to_lose_;
  ++counters_.batches;
  counters_.lost += lost ? 1 : 0;
  ranks_[static_cast<std::size_t>(rank)]->publish(kv_batch_bytes(events, rank, now_seconds()), lost);
}

void KvEventPublisher::restart() {
  close();
  // The system may need a moment to give the ports back.
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    if (try_open(port_, replay_port_)) return;
  }
  throw std::runtime_error("the event ports were taken by somebody else");
}

void KvEventPublisher::close() {
  ranks_.clear();
  context_.reset();
}

std::uint64_t KvEventPublisher::next_sequence() const {
  return ranks_.empty() ? 0 : ranks_.front()->next();
}

}  // namespace handoff::mock
