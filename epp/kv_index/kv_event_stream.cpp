#include "epp/kv_index/kv_event_stream.hpp"

#include <utility>

namespace handoff::epp {

void KvEventStream::set_next(std::uint64_t next) {
  next_ = next;
  counters_.next_sequence.store(next, std::memory_order_relaxed);
}

void KvEventStream::set_complete(bool complete) {
  is_complete_ = complete;
  counters_.is_complete.store(complete, std::memory_order_relaxed);
}

void KvEventStream::on_connected(SteadyTime now) {
  if (std::exchange(was_connected_, true)) {
    count(counters_.reconnects);
    start_over(now);
  } else if (state_ == State::waiting && options_.can_replay) {
    // What the publisher did before we came. Without waiting for its next batch: it may be idle with a full
    // cache.
    start_replay(0, now);
    set_complete(true);
  }
}

// Whoever publishes now may be another process: nothing that we know need be true of it.
void KvEventStream::start_over(SteadyTime now) {
  drop_held();
  sink_.clear();
  set_next(0);
  last_live_.reset();
  gap_is_tried_ = false;
  set_complete(options_.can_replay);
  if (options_.can_replay) {
    start_replay(0, now);
  } else {
    state_ = State::waiting;
  }
}

void KvEventStream::on_batch(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now) {
  const bool went_back = last_live_ && sequence <= *last_live_;
  if (went_back) {
    count(counters_.restarts);
    if (sequence == 0) {
      // Its very first batch: there is nothing to ask for.
      drop_held();
      sink_.clear();
      set_next(0);
      gap_is_tried_ = false;
      request_.reset();
      state_ = State::waiting;
    } else {
      start_over(now);
    }
  }
  last_live_ = sequence;
  switch (state_) {
    case State::replaying:
      hold(sequence, payload, now);
      return;
    case State::waiting:
      if (sequence == 0) {
        set_complete(true);
      } else if (options_.can_replay) {
        set_complete(true);
        start_replay(0, now);
        hold(sequence, payload, now);
        return;
      } else {
        // Joined in the middle. Nothing was there that could be wrong, so nothing is lost by it.
        set_complete(false);
        set_next(sequence);
      }
      state_ = State::live;
      [[fallthrough]];
    case State::live:
      take_live(sequence, payload, std::exchange(gap_is_tried_, false), now);
      return;
  }
}

void KvEventStream::take_live(std::uint64_t sequence, std::span<const std::byte> payload, bool gap_is_tried,
                              SteadyTime now) {
  if (sequence < next_) {
    count(counters_.covered_batches);
    return;
  }
  if (sequence > next_) {
    note_gap(sequence);
    if (options_.can_replay && !gap_is_tried) {
      start_replay(next_, now);
      hold(sequence, payload, now);
      return;
    }
    lose_history(sequence);
  }
  apply(sequence, payload, now);
}

void KvEventStream::note_gap(std::uint64_t sequence) {
  count(counters_.gaps);
  count(counters_.missed_batches, sequence - next_);
}

void KvEventStream::lose_history(std::uint64_t next) {
  count(counters_.lost_histories);
  sink_.clear();
  set_complete(false);
  set_next(next);
}

void KvEventStream::apply(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now) {
  const KvApplyReport report = sink_.apply(payload);
  set_next(sequence + 1);
  if (!report.is_decoded) {
    // A gap of one batch. A replay would bring the same bytes, so it is not asked for.
    count(counters_.undecodable);
    count(counters_.gaps);
    count(counters_.missed_batches);
    lose_history(sequence + 1);
    return;
  }
  count(counters_.batches);
  if (report.has_orphans && is_complete_ && state_ == State::live) {
    count(counters_.contradictions);
    if (!last_contradiction_ || now - *last_contradiction_ >= options_.restart_pause) {
      last_contradiction_ = now;
      const auto last_live = last_live_;
      start_over(now);
      last_live_ = last_live;
      // Without a replay the numbers go on, only what is indexed starts anew.
      if (!options_.can_replay) {
        state_ = State::live;
        set_next(sequence + 1);
      }
      return;
    }
  }
  if (report.has_gaps || report.has_orphans) set_complete(false);
}

// --- replays ---

void KvEventStream::start_replay(std::uint64_t from, SteadyTime now) {
  count(counters_.replays);
  state_ = State::replaying;
  request_ = from;
  deadline_ = now + options_.replay_timeout;
}

std::optional<std::uint64_t> KvEventStream::take_replay_request() {
  return std::exchange(request_, std::nullopt);
}

std::optional<SteadyTime> KvEventStream::replay_deadline() const {
  if (state_ != State::replaying) return std::nullopt;
  return deadline_;
}

void KvEventStream::on_replayed(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now) {
  if (state_ != State::replaying || sequence < next_) return;
  // The publisher's buffer did not reach back far enough, and says so only by its numbers.
  if (sequence > next_) {
    note_gap(sequence);
    lose_history(sequence);
  }
  count(counters_.replayed_batches);
  apply(sequence, payload, now);
}

void KvEventStream::on_replay_end(SteadyTime now) {
  if (state_ == State::replaying) finish_replay(false, now);
}

void KvEventStream::on_replay_failed(SteadyTime now) {
  if (state_ != State::replaying) return;
  count(counters_.failed_replays);
  finish_replay(true, now);
}

void KvEventStream::on_tick(SteadyTime now) {
  if (state_ == State::replaying && now >= deadline_) on_replay_failed(now);
}

void KvEventStream::finish_replay(bool has_failed, SteadyTime now) {
  request_.reset();
  state_ = State::live;
  // What the replay did not bring up to the first held batch is the gap that was asked for, and won't be
  // asked for again. When nothing is held, that holds for the next batch, unless the publisher said that it
  // has no more.
  gap_is_tried_ = has_failed && held_.empty();
  bool gap_is_tried = true;
  while (!held_.empty() && state_ == State::live) {
    const Held batch = std::move(held_.front());
    held_.pop_front();
    held_bytes_ -= batch.payload.size();
    // A gap further on is a new one. Its replay holds this batch again, behind those that are held already.
    const std::size_t before = held_.size();
    take_live(batch.sequence, batch.payload, std::exchange(gap_is_tried, false), now);
    if (held_.size() > before) {
      held_.push_front(std::move(held_.back()));
      held_.pop_back();
    }
  }
}

void KvEventStream::hold(std::uint64_t sequence, std::span<const std::byte> payload, SteadyTime now) {
  held_.push_back({sequence, {payload.begin(), payload.end()}});
  held_bytes_ += payload.size();
  if (held_.size() <= options_.max_held_batches && held_bytes_ <= options_.max_held_bytes) return;
  count(counters_.held_overflows);
  on_replay_failed(now);
}

void KvEventStream::drop_held() {
  held_.clear();
  held_bytes_ = 0;
}

}  // namespace handoff::epp
