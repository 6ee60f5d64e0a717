// An exchange that a backend decides: its actions carried out, its events delivered.
#pragma once

#include <boost/container/small_vector.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shared/backend_abi/decode_backend.h"
#include "sidecar/cancel_source.hpp"
#include "sidecar/client_connection.hpp"
#include "sidecar/loop_services.hpp"
#include "sidecar/memory_budget.hpp"
#include "sidecar/recycled.hpp"
#include "sidecar/request_context.hpp"
#include "sidecar/response_relay.hpp"
#include "sidecar/signal.hpp"
#include "sidecar/upstream_leg.hpp"

namespace handoff::sidecar {

/// Runs one request through the backend. run() is the whole story: ask the backend, do what it says, tell it
/// what happened, until the client has its answer or is gone; then END.
///
/// A leg that runs alone is awaited in place; legs that run beside each other are coroutines of their own,
/// which hold the exchange (shared_ptr) because a lingering leg may outlive run(). None of them touches the
/// client once run() has returned.
class DisaggregatedExchange : public std::enable_shared_from_this<DisaggregatedExchange>,
                              public Recycled<DisaggregatedExchange> {
 public:
  DisaggregatedExchange(LoopServices& services, std::shared_ptr<RequestContext> request,
                        ClientConnection& client, ResponseRelay& relay, CancelSource& cancel);
  ~DisaggregatedExchange();

  Awaitable<ExchangeOutcome> run();

  // The backend's actions (backend ABI), valid while one of its entries runs.
  handoff_status start(const handoff_leg& leg);
  handoff_status cancel_leg(std::uint32_t leg);
  handoff_status relay_leg(std::uint32_t leg);
  handoff_status respond(const handoff_reply& reply);
  handoff_status write(std::span<const handoff_piece> pieces, bool last);
  handoff_status fail(const handoff_failure& failure);
  handoff_status fail_with_leg(std::uint32_t leg);
  handoff_status decode_only(std::string_view reason, std::span<const handoff_header> headers);
  handoff_status background(const handoff_leg& leg);
  /// The end is decided: what the backend still asks for is accepted and not done.
  bool closing() const { return closing_; }

 private:
  struct Leg;
  struct LegBody;
  struct Event {
    std::uint32_t kind = 0;
    Leg* leg = nullptr;
    std::string piece;  // LEG_BODY
  };
  // Actions, in the order asked for.
  struct StartLeg {
    Leg* leg;
  };
  struct CancelLeg {
    Leg* leg;
  };
  struct RelayLeg {
    Leg* leg;
  };
  struct Respond {
    Answer answer;
    bool more;
  };
  struct Write {
    std::string bytes;
    bool last;
  };
  struct FailWithLeg {
    Leg* leg;
  };
  struct DecodeOnly {};
  using Action = std::variant<StartLeg, CancelLeg, RelayLeg, Respond, Write, FailWithLeg, DecodeOnly>;
  enum class Claim { none, leg, stream, final };  // who answers the client

  // The backend's side.
  handoff_status begin();
  handoff_status deliver(const Event& event);
  void tell_rest();
  void tell_end(ExchangeOutcome outcome);
  Leg* find(std::uint32_t id) const;
  bool may_answer() const { return in_entry_ && !ending_ && claim_ == Claim::none; }
  handoff_status check_leg(const handoff_leg& leg) const;
  bool gather_body(const handoff_leg& leg, LegBody& out) const;
  EngineAddress engine_of(const handoff_leg& leg) const;
  std::string head_of(const handoff_leg& leg, const EngineAddress& engine, std::size_t body_size) const;

  // The engines' side.
  Awaitable<> carry_out();
  Awaitable<> carry_out_one(Action& action);
  Awaitable<> run_leg(Leg& leg);
  Awaitable<LegFailure> open_with_retries(Leg& leg);
  Awaitable<LegFailure> receive(Leg& leg);
  bool collect_at_once(Leg& leg, LegFailure& failure);
  Awaitable<> wait_for_body(Leg& leg);
  Awaitable<LegFailure> relay_running(Leg& leg, bool is_whole);
  bool keep(Leg& leg, std::span<const std::string_view> pieces);
  void spawn(Leg& leg);
  /// May linger: the client left, or has another answer. At once: the backend says so, or the sidecar stops.
  enum class GiveUp { may_linger, at_once };
  void give_up(Leg& leg, GiveUp how);
  void give_up_all(GiveUp how);
  void push(Event event);
  void let_read_on(Leg& leg);
  void unpark(Leg& leg);
  bool nothing_moves() const;
  void let_go_of_body();
  LegRequest request_of(Leg& leg, bool is_last);
  void tell_sent(Leg& leg);
  void tell_connected(Leg& leg);
  std::uint64_t retries_of(const Leg& leg) const;
  bool runs_alone(const Leg& leg) const;

  // The client's side.
  Awaitable<> answer(const Answer& answer);
  Awaitable<> settle_with_leg(Leg& leg);
  Answer failed_leg_answer(const Leg& leg);
  Answer made_error(SidecarError error, std::string_view message, unsigned status = 0);
  void note_relay_end(RelayEnd end);
  Awaitable<> wait_for_relaying_legs();
  ExchangeOutcome outcome() const;

  LoopServices& services_;
  std::shared_ptr<RequestContext> request_;
  ClientConnection& client_;
  ResponseRelay& relay_;
  CancelSource& cancel_;
  BackendExchange exchange_;
  std::vector<handoff_header> abi_headers_;
  std::vector<handoff_member> abi_members_;
  // As many as most protocols need lie within.
  boost::container::small_vector<std::unique_ptr<Leg>, 2> legs_;
  boost::container::small_vector<Action, 1> actions_;
  boost::container::small_vector<Event, 1> events_;  // oldest first; seldom more than one
  Signal signal_;
  std::size_t running_ = 0;
  std::size_t relaying_ = 0;
  std::vector<std::pair<std::string, std::string>> decode_only_headers_;
  bool wants_decode_only_ = false;
  bool in_entry_ = false;
  bool ending_ = false;
  bool closing_ = false;
  bool body_gone_ = false;        // freed, since the answer flows
  bool lost_in_transit_ = false;  // a leg was, so whatever the backend starts now gets a new connection
  bool settled_ = false;          // the client has its answer, or can't have one
  bool broken_ = false;
  Claim claim_ = Claim::none;
};

}  // namespace handoff::sidecar
