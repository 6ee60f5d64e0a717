#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "epp/kv_index/kv_batch_sink.hpp"

namespace handoff::epp {

struct KvStreamOptions {
  bool can_replay = false;
  // For a whole replay, not for each message of it.
  std::chrono::milliseconds replay_timeout = std::chrono::seconds{10};
  // Live batches kept while a replay is under way.
  std::size_t max_held_batches = 8192;
  std::size_t max_held_bytes = std::size_t{64} << 20;
  // Orphaned blocks in a complete history ask for a new start, but not more often than this.
  std::chrono::milliseconds restart_pause = std::chrono::seconds{60};
};

// Read from any thread.
struct KvStreamCounters {
  using Counter = std::atomic<std::uint64_t>;

  Counter batches{0};         // applied
  Counter gaps{0};            // places where batches were missing
  Counter missed_batches{0};  // by their numbers
  Counter lost_histories{0};  // the rank was cleared because something could not be recovered
  Counter undecodable{0};
  Counter replays{0};
  Counter failed_replays{0};
  Counter replayed_batches{0};
  Counter covered_batches{0};  // live ones that a replay had brought before
  Counter held_overflows{0};
  Counter reconnects{0};
  Counter restarts{0};  // numbers went back on a live connection
  Counter contradictions{0};
  std::atomic<std::uint64_t> next_sequence{0};
  std::atomic<bool> is_complete{false};  // everything since the publisher's first batch is in
};

// Puts the batches of one publisher in order and decides what to do about those that are missing. Knows
// numbers, not contents; no sockets, no threads, no clock: tell it what happened and when.
//
//   live -- a number is skipped, the publisher is new --> replaying -- end, failure, time is up --> live
//
// A gap is asked for once. What is not recovered breaks the history: removals may be among it, so the sink is
// cleared and rebuilt from what comes. Not thread-safe; the sink outlives it.
class KvEventStream {
 public:
  KvEventStream(const KvStreamOptions& options, KvBatchSink& sink) : options_(options), sink_(sink) {}

  // The subscription is up; each time after the first one means that we don't know what happened in between.
  void on_connected(SteadyTime now);
  void on_batch(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now);

  // Replays, one at a time. take_replay_request: ask for everything from this number on.
  std::optional<std::uint64_t> take_replay_request();
  void on_replayed(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now);
  void on_replay_end(SteadyTime now);
  void on_replay_failed(SteadyTime now);
  // Call it at replay_deadline() or later.
  void on_tick(SteadyTime now);
  std::optional<SteadyTime> replay_deadline() const;

  bool is_replaying() const { return state_ == State::replaying; }
  const KvStreamCounters& counters() const { return counters_; }

 private:
  enum class State : std::uint8_t { waiting, live, replaying };

  struct Held {
    std::uint64_t sequence;
    std::vector<std::byte> payload;
  };

  using Counter = KvStreamCounters::Counter;

  static void count(Counter& counter, std::uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }

  void start_over(SteadyTime now);
  void start_replay(std::uint64_t from, SteadyTime now);
  void finish_replay(bool has_failed, SteadyTime now);
  void take_live(std::uint64_t sequence, std::span<const std::byte> payload, bool gap_is_tried,
                 SteadyTime now);
  void hold(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now);
  void apply(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now);
  void note_gap(std::uint64_t sequence);
  void lose_history(std::uint64_t next);
  void drop_held();
  void set_next(std::uint64_t next);
  void set_complete(bool complete);

  const KvStreamOptions options_;
  KvBatchSink& sink_;
  KvStreamCounters counters_;
  State state_ = State::waiting;
  bool was_connected_ = false;
  std::uint64_t next_ = 0;                  // the number that continues the history
  std::optional<std::uint64_t> last_live_;  // as received, applied or not
  bool is_complete_ = false;
  bool gap_is_tried_ = false;  // the replay of what is missing at next_ failed
  std::optional<std::uint64_t> request_;
  SteadyTime deadline_{};
  std::optional<SteadyTime> last_contradiction_;
  std::deque<Held> held_;
  std::size_t held_bytes_ = 0;
};

}  // namespace handoff::epp
