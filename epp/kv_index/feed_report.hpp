#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "epp/kv_index/rank_registry.hpp"

namespace handoff::epp {

// How it goes with the events of one rank, in words for the log.
enum class FeedState : std::uint8_t {
  connecting,     // nothing is known yet
  unreachable,    // the publisher can't be connected to
  following,      // connected; what came was in order
  disconnected,   // the connection was lost
  history_lost,   // batches are missing and could not be got back: the rank's index starts anew
  replay_failed,  // the same, and the publisher's replay did not answer as it should
  undecodable,    // messages or batches that are not understood
};

std::string_view to_string(FeedState state);

// Which changes of state are told: each, but no more than `kMost` in `kPause`; what is held back meanwhile is
// counted, and the state at its end is told then. One thread; no clock of its own.
class FeedReport {
 public:
  static constexpr std::chrono::seconds kPause{60};
  static constexpr unsigned kMost = 4;

  struct Line {
    FeedState state = FeedState::connecting;
    std::uint64_t suppressed = 0;  // changes since the last line, beside this one
  };

  // Stays until something else is noted.
  void note(FeedState state) {
    if (state == state_) return;
    state_ = state;
    ++changes_;
  }
  FeedState state() const { return state_; }

  // What is to be told now.
  std::optional<Line> take(SteadyTime now) {
    if (changes_ == 0 || (told_ >= kMost && now < pause_ends_)) return std::nullopt;
    if (now >= pause_ends_) {
      pause_ends_ = now + kPause;
      told_ = 0;
    }
    ++told_;
    return Line{state_, std::exchange(changes_, 0) - 1};
  }
  // When take() has something that it does not have now.
  std::optional<SteadyTime> due() const {
    return changes_ == 0 ? std::nullopt : std::optional<SteadyTime>(pause_ends_);
  }

 private:
  FeedState state_ = FeedState::connecting;
  std::uint64_t changes_ = 0;
  unsigned told_ = 0;
  SteadyTime pause_ends_ = SteadyTime::min();
};

}  // namespace handoff::epp
