#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "tests/unit/epp/kv_index/kv_event_writer.hpp"

namespace handoff::epp::test {

// An engine's event publisher: a PUB socket, and a ROUTER socket that replays a bounded buffer. Speaks the
// frames of every generation. Ports are the system's choice; a restarted one takes its predecessor's.
class FakeKvPublisher {
 public:
  struct Options {
    std::string topic;
    bool has_replay = true;
    bool replays_topic = true;  // vLLM since July 2026; before, and SGLang: no topic frame
    std::size_t buffered_batches = 10'000;
    std::string events_endpoint = "tcp://127.0.0.1:*";
    std::string replay_endpoint = "tcp://127.0.0.1:*";
    bool dials = false;           // the subscriber binds
    bool answers_replays = true;  // false: takes the request and says nothing
  };

  explicit FakeKvPublisher(Options options)
      : options_(std::move(options)), events_(context_, zmq::socket_type::xpub) {
    events_.set(zmq::sockopt::linger, 0);
    if (options_.dials) {
      events_.connect(options_.events_endpoint);
    } else {
      events_.bind(options_.events_endpoint);
      events_endpoint_ = events_.get(zmq::sockopt::last_endpoint);
    }
    if (!options_.has_replay) return;
    replay_.emplace(context_, zmq::socket_type::router);
    replay_->set(zmq::sockopt::linger, 0);
    replay_->bind(options_.replay_endpoint);
    replay_endpoint_ = replay_->get(zmq::sockopt::last_endpoint);
    replayer_ = std::thread([this] { serve_replays(); });
  }

  ~FakeKvPublisher() {
    stopping_ = true;
    if (replayer_.joinable()) replayer_.join();
  }

  const std::string& events_endpoint() const { return events_endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

  // Until a subscription has arrived: what is published before is seen by nobody. False when that takes
  // suspiciously long.
  bool wait_for_subscriber() {
    zmq::pollitem_t item{events_.handle(), 0, ZMQ_POLLIN, 0};
    if (zmq::poll(&item, 1, std::chrono::seconds(20)) == 0) return false;
    zmq::message_t frame;
    return events_.recv(frame).has_value();
  }

  void publish(Payload payload) {
    const std::uint64_t sequence = next_++;
    remember(sequence, payload);
    send(sequence, payload);
  }

  // As if the network had lost it: it counts, and can be replayed.
  void lose(Payload payload) { remember(next_++, payload); }

  // Frames as they come, for those that break the rules.
  void send_raw(const std::vector<Payload>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      events_.send(zmq::buffer(frames[i].data(), frames[i].size()),
                   i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }

  int replay_requests() const { return replay_requests_; }

 private:
  struct Batch {
    std::uint64_t sequence;
    Payload payload;
  };

  static std::array<std::uint8_t, 8> big_endian(std::uint64_t value) {
    std::array<std::uint8_t, 8> bytes{};
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (56 - 8 * i));
    return bytes;
  }

  void remember(std::uint64_t sequence, const Payload& payload) {
    const std::lock_guard lock(mutex_);
    buffer_.push_back({sequence, payload});
    if (buffer_.size() > options_.buffered_batches) buffer_.pop_front();
  }

  void send(std::uint64_t sequence, const Payload& payload) {
    events_.send(zmq::buffer(options_.topic), zmq::send_flags::sndmore);
    events_.send(zmq::buffer(big_endian(sequence)), zmq::send_flags::sndmore);
    events_.send(zmq::buffer(payload.data(), payload.size()), zmq::send_flags::none);
  }

  void serve_replays() {
    while (!stopping_) {
      zmq::pollitem_t item{replay_->handle(), 0, ZMQ_POLLIN, 0};
      if (zmq::poll(&item, 1, std::chrono::milliseconds(20)) == 0) continue;
      std::vector<zmq::message_t> frames;
      for (bool more = true; more;) {
        frames.emplace_back();
        if (!replay_->recv(frames.back())) return;
        more = frames.back().more();
      }
      ++replay_requests_;
      // Engines insist on [identity, empty, number].
      if (frames.size() != 3 || frames[1].size() != 0 || frames[2].size() != 8 || !options_.answers_replays)
        continue;
      std::uint64_t from = 0;
      for (std::size_t i = 0; i < 8; ++i) from = from << 8 | frames[2].data<std::uint8_t>()[i];
      const std::lock_guard lock(mutex_);
      for (const Batch& batch : buffer_) {
        if (batch.sequence >= from) reply(frames[0], options_.topic, batch.sequence, batch.payload);
      }
      reply(frames[0], "", ~std::uint64_t{0}, {});
    }
  }

  void reply(const zmq::message_t& identity, const std::string& topic, std::uint64_t sequence,
             const Payload& payload) {
    replay_->send(zmq::buffer(identity.data(), identity.size()), zmq::send_flags::sndmore);
    replay_->send(zmq::message_t(), zmq::send_flags::sndmore);
    if (options_.replays_topic) replay_->send(zmq::buffer(topic), zmq::send_flags::sndmore);
    replay_->send(zmq::buffer(big_endian(sequence)), zmq::send_flags::sndmore);
    replay_->send(zmq::buffer(payload.data(), payload.size()), zmq::send_flags::none);
  }

  const Options options_;
  zmq::context_t context_;
  zmq::socket_t events_;
  std::optional<zmq::socket_t> replay_;
  std::string events_endpoint_;
  std::string replay_endpoint_;
  std::uint64_t next_ = 0;
  std::mutex mutex_;
  std::deque<Batch> buffer_;
  std::atomic<int> replay_requests_{0};
  std::atomic<bool> stopping_{false};
  std::thread replayer_;
};

}  // namespace handoff::epp::test
