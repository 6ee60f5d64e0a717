#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "epp/kv_index/kv_event_feed.hpp"
#include "epp/kv_index/kv_message.hpp"

namespace handoff::epp {

// The part of KvEventFeed that knows ZeroMQ. One thread at a time.
class KvEventFeed::Impl {
 public:
  // Throws zmq::error_t for an endpoint that can't be used.
  Impl(zmq::context_t& context, BlockIndex& index, KvFeedOptions options);

  void add_poll_items(std::vector<zmq::pollitem_t>& items);
  enum class Turn : std::uint8_t { nothing, all, more };

  // Takes what has arrived, up to a limit so that other feeds get their turn.
  Turn process(const KvFeedPool::Clock& clock);

  // Closes the sockets; only counters may be read afterwards. A feed may be held longer than its pool lives.
  void close();

  std::optional<SteadyTime> deadline() const { return stream_.replay_deadline(); }
  bool is_replaying() const { return replay_.has_value(); }
  WorkerRank rank() const { return options_.applier.rank; }
  const KvStreamCounters& stream_counters() const { return stream_.counters(); }
  const KvApplierCounters& applier_counters() const { return applier_.counters(); }
  std::uint64_t malformed_messages() const { return malformed_.load(std::memory_order_relaxed); }
  const std::string& bound_endpoint() const { return bound_endpoint_; }

 private:
  static constexpr std::size_t kMaxFrames = 4;

  // The frames of one message; more than kMaxFrames are read and counted, not kept.
  struct Message {
    std::array<zmq::message_t, kMaxFrames + 1> frames;  // the last one for all that are too many
    std::size_t count = 0;
    std::array<KvFrame, kMaxFrames> views;
  };

  void watch_connection();
  bool receive(zmq::socket_t& socket, Message& message);
  void take_connection_events(SteadyTime now);
  bool take_live(SteadyTime now);
  bool take_replayed(SteadyTime now);
  void follow_stream(SteadyTime now);
  void ask_for_replay(std::uint64_t from, SteadyTime now);

  zmq::context_t& context_;
  const KvFeedOptions options_;
  KvEventApplier applier_;
  KvEventStream stream_;
  zmq::socket_t events_;
  zmq::socket_t connection_;  // the monitor of events_
  std::optional<zmq::socket_t> replay_;
  std::string bound_endpoint_;
  Message message_;
  Message connection_message_;
  std::uint64_t last_sequence_ = 0;
  std::atomic<std::uint64_t> malformed_{0};
};

}  // namespace handoff::epp
