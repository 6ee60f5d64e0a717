// The parts of a DisaggregatedExchange that only its own .cpp files see.
#pragma once

#include <optional>

#include "sidecar/disaggregated_exchange.hpp"

/// One entry of a backend: valid while the entry runs.
struct handoff_turn {
  handoff::sidecar::DisaggregatedExchange* exchange;
};

namespace handoff::sidecar {

/// What a leg sends. Not copied or moved: the pieces may view `added`.
struct DisaggregatedExchange::LegBody {
  LegBody() = default;
  LegBody(const LegBody&) = delete;
  LegBody& operator=(const LegBody&) = delete;

  boost::container::small_vector<std::string_view, 8> pieces;
  boost::container::small_vector<char, 384> added;  // by the backend; the others lie in the request's body
  std::size_t size = 0;
};

/// A leg as the backend asked for it, and how far it is.
struct DisaggregatedExchange::Leg : Recycled<Leg> {
  explicit Leg(LoopServices& services) : share(services.budget), wake(services.context.get_executor()) {}

  std::uint32_t id = 0;
  std::uint32_t role = 0;
  std::uint32_t target = 0;
  std::uint32_t reply = 0;
  std::uint32_t flags = 0;
  milliseconds linger{0};
  milliseconds deadline{0};
  std::size_t reply_limit = 0;
  EngineAddress engine;
  std::string head;
  bool is_head = false;
  LegBody body;

  std::optional<UpstreamLeg> upstream;  // from the leg's start
  std::string collected;                // COLLECT: all; HOLD: what is held back; STREAM: one piece
  BudgetShare share;
  Signal wake;                    // for a leg that waits for the backend or the client
  std::optional<Deadline> timer;  // linger, or the pause before a retry
  LegFailure failure = LegFailure::none;
  std::size_t streamed = 0;  // STREAM: bytes that the backend was given
  bool told_sent = false;
  bool parked = false;  // waits until the backend decides
  bool relay_requested = false;
  bool relayed = false;
  bool given_up = false;
  bool finished = false;

  /// The prefill leg, or a question to the prefill engine that comes before it: where either fails, prefill
  /// has.
  bool asks_prefill() const {
    return role == HANDOFF_ROLE_PREFILL ||
           (role == HANDOFF_ROLE_AUXILIARY && target == HANDOFF_TARGET_PREFILL);
  }
};

}  // namespace handoff::sidecar
