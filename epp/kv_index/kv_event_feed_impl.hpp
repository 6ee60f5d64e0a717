#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "epp/kv_index/feed_report.hpp"
#include "epp/kv_index/kv_event_feed.hpp"
#include "epp/kv_index/kv_message.hpp"

namespace handoff::epp {

// The part of KvEventFeed that knows ZeroMQ. One thread at a time, but for what says otherwise.
class KvEventFeed::Impl {
 public:
  // Throws zmq::error_t for an endpoint that can't be used.
  Impl(zmq::context_t& context, BlockIndex& index, KvFeedOptions options);

  // Has the epoll set tell, with `key`, when process() may find something. Once it was called, that is: what
  // is there already is not told. Throws std::system_error.
  void watch_with(int epoll, void* key);
  enum class Turn : std::uint8_t { nothing, all, more };

  // Takes what has arrived, up to a limit so that other feeds get their turn.
  Turn process(const KvFeedPool::Clock& clock);

  // From any thread: once it returned, process() does nothing any more.
  void silence();

  // Closes the sockets, if they aren't yet; only counters may be read afterwards. A feed may be held longer
  // than its pool lives.
  void close();

  // When process() has something to do without a word from the publisher.
  std::optional<SteadyTime> deadline() const;
  WorkerRank rank() const { return options_.applier.rank; }
  const KvStreamCounters& stream_counters() const { return stream_.counters(); }
  const KvApplierCounters& applier_counters() const { return applier_.counters(); }
  std::uint64_t malformed_messages() const { return malformed_.load(std::memory_order_relaxed); }
  const std::string& bound_endpoint() const { return bound_endpoint_; }

 private:
  static constexpr std::size_t kMaxFrames = 4;

  // What has been counted when the log was last thought of.
  struct Seen {
    std::uint64_t batches = 0;
    std::uint64_t lost_histories = 0;
    std::uint64_t failed_replays = 0;
    std::uint64_t undecodable = 0;
  };

  // The frames of one message; more than kMaxFrames are read and counted, not kept.
  struct Message {
    std::array<zmq::message_t, kMaxFrames + 1> frames;  // the last one for all that are too many
    std::size_t count = 0;
    std::array<KvFrame, kMaxFrames> views;
  };

  Turn take_messages(const KvFeedPool::Clock& clock);
  Seen seen_now() const;
  void report(SteadyTime now);
  void watch_connection();
  void watch(zmq::socket_t& socket) const;
  void unwatch(zmq::socket_t& socket) const;
  void close_replay();
  bool receive(zmq::socket_t& socket, Message& message);
  void take_connection_events(SteadyTime now);
  bool take_live(SteadyTime now);
  bool take_replayed(SteadyTime now);
  bool follow_stream(SteadyTime now);
  void ask_for_replay(std::uint64_t from, SteadyTime now);

  zmq::context_t& context_;
  const KvFeedOptions options_;
  std::mutex turn_;  // of process()
  bool is_silent_ = false;
  int epoll_ = -1;
  void* key_ = nullptr;
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
  Seen seen_;
  FeedReport report_;
};

}  // namespace handoff::epp
