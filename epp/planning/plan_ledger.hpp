#pragma once

#include <array>
#include <atomic>
#include <boost/intrusive/list.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "epp/selection/selection_service.hpp"

namespace handoff::epp {

class Plan;
class PlanLedger;

// The half of a plan that a reservation is for. It qualifies the reservation's id: "<plan>/p", "<plan>/d",
// short enough that ids need no memory of their own.
enum class Leg : std::uint8_t { kPrefill, kDestination };
inline constexpr std::size_t kLegs = 2;
std::string_view to_string(Leg leg);

enum class PlanState : std::uint8_t {
  kReserving,        // legs are being booked; nothing is shown to anybody
  kReserved,         // every leg is booked
  kPublished,        // the route was given to the gateway
  kPrefillReleased,  // the prompt is done; only the answer is still being made
  kClosed,           // nothing is booked any more, and nothing will be
};
std::string_view to_string(PlanState state);

// What became of a round of bookings.
struct BookingFailure {
  Leg leg = Leg::kDestination;
  SelectionError error;
};
// Empty: every leg of the round is booked.
using BookingOutcome = std::optional<BookingFailure>;

// Who asked for a round of bookings. Told from any thread, without locks, once; not after the plan's close().
class BookingListener {
 public:
  virtual ~BookingListener() = default;
  virtual void on_booked(BookingOutcome outcome) = 0;
  // Now and then while a leg waits in a queue and another one is booked, which may have lost its worker
  // since.
  virtual void on_waiting(Plan&) {}
};

// One request's bookings under one id: all or nothing. Whatever goes wrong while they are made (a leg fails,
// the client leaves) undoes what was booked, cancels what waits, and frees what still comes in. So a plan
// that was not published is never seen by anybody, and nothing of a closed plan stays booked.
//
// Owner: shared by whoever plans and by the request's stream; the last one to go closes it. It is also who
// holds the reservations. Threads: any.
class Plan : public std::enable_shared_from_this<Plan>, public boost::intrusive::list_base_hook<> {
 public:
  struct Token {};  // only the ledger makes plans
  Plan(Token, PlanLedger& ledger, std::string id);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const std::string& id() const { return id_; }
  PlanState state() const;

  struct Wish {
    Leg leg = Leg::kDestination;
    SelectionService* service = nullptr;
    SelectRequest request;  // its selection_id is set here
    // What may go wrong without failing the round: no worker is there for this leg.
    bool may_lack_workers = false;
  };
  // Starts all bookings of a round at once; the requests are moved from. A plan may have further rounds (for
  // a leg that was not in the first, or was given back). `listener` is told when all of the round are booked,
  // or at the first that failed.
  void reserve(std::span<Wish> round, std::shared_ptr<BookingListener> listener);

  // Frees the booking of a leg that is to be booked elsewhere by another round: before publish() only, and
  // not while others look at it. False when there is none.
  bool give_back(Leg leg);
  // The same while another leg waits in its queue, whose answer may come at any time: it then waits for this
  // leg's. False also when the leg is not booked at `lost` any more.
  bool give_back_while_waiting(Leg leg, WorkerId lost);

  // Tells the listener when one leg is booked and another one waits in its queue.
  void look_after_waiting();

  // For a request that somebody else routed: books the leg at request.worker, or, as long as that is not
  // known, where move_destination() will say. False when there is no booking yet. The prompt is read during
  // the call.
  bool reserve_at(Leg leg, SelectionService& service, ReservationRequest request);

  // Where a leg is booked; also while it may be booked elsewhere meanwhile.
  std::optional<WorkerId> booked_worker(Leg leg) const;
  // The booking of a leg; null when there is none (any more).
  std::shared_ptr<const Selection> booking(Leg leg) const;

  // Transitions; each says whether it applied.
  bool publish();
  bool release_prefill();
  bool close();

  // Cumulative output tokens of the answer.
  void on_output(std::uint64_t tokens);
  // The gateway sent the request to another worker than the chosen one: the booking moves there. Of a request
  // that somebody else routed, it may be the first one.
  bool move_destination(WorkerRank to);

 private:
  enum class LegState : std::uint8_t { kNone, kPending, kBooked, kMissing, kFreed };
  struct Slot {
    LegState state = LegState::kNone;
    bool may_lack_workers = false;
    SelectionService* service = nullptr;
    std::string reservation_id;
    PendingSelection waiting;
    // What was booked, as long as it is. Others may still look at it then, so it stays where it is; where a
    // moved booking went has memory of its own.
    const Selection* booked = nullptr;
    Selection first;
    std::shared_ptr<const Selection> moved;
    // What would be booked if it were known where.
    std::unique_ptr<ReservationRequest> wanted;
  };
  // What is to be done when the lock is gone.
  struct Undo {
    std::array<PendingSelection, kLegs> cancel;
    struct Free {
      SelectionService* service = nullptr;
      std::string id;
      std::uint64_t attempt = 0;
    };
    std::array<Free, kLegs> free;
    std::size_t frees = 0;
    void apply();
  };

  Slot& slot(Leg leg) { return slots_[static_cast<std::size_t>(leg)]; }
  const Slot& slot(Leg leg) const { return slots_[static_cast<std::size_t>(leg)]; }
  void on_leg(Leg leg, Result<Selection>&& result);
  // Under the lock.
  bool round_is_booked() const;
  bool waits_in_queue() const;
  void close_locked(Undo& undo);
  ReservationRequest moved_request(const Slot& slot) const;
  static void take_booking(Slot& slot, Undo& undo);
  std::string next_reservation_id(Leg leg);

  PlanLedger& ledger_;
  const std::string id_;
  mutable std::mutex mutex_;
  PlanState state_ = PlanState::kReserving;
  std::array<Slot, kLegs> slots_;
  std::shared_ptr<BookingListener> listener_;
  std::uint32_t rebookings_ = 0;
};

struct PlanCounts {
  std::uint64_t opened = 0;
  std::uint64_t published = 0;
  std::uint64_t closed = 0;
  std::uint64_t compensated = 0;  // closed with bookings that were never published
  std::uint64_t moved = 0;
};

// All plans that are not closed.
//
// Owner: the program; must outlive its plans. Threads: any. One short lock per shard.
class PlanLedger {
 public:
  PlanLedger() = default;
  PlanLedger(const PlanLedger&) = delete;
  PlanLedger& operator=(const PlanLedger&) = delete;

  std::shared_ptr<Plan> open(std::string id);
  std::size_t open_plans() const;
  PlanCounts counts() const;

  struct Line {
    std::string id;
    PlanState state;
  };
  // For reports: at most `limit` of the open plans.
  std::vector<Line> list(std::size_t limit) const;

  // See Plan: of all open plans.
  void look_after_waiting();

 private:
  friend class Plan;
  static constexpr std::size_t kShards = 16;
  struct Shard {
    mutable std::mutex mutex;
    boost::intrusive::list<Plan, boost::intrusive::constant_time_size<false>> plans;
  };
  Shard& shard_of(std::string_view id);
  void forget(Plan& plan);

  std::array<Shard, kShards> shards_;
  std::atomic<std::uint64_t> opened_{0};
  std::atomic<std::uint64_t> published_{0};
  std::atomic<std::uint64_t> closed_{0};
  std::atomic<std::uint64_t> compensated_{0};
  std::atomic<std::uint64_t> moved_{0};
};

}  // namespace handoff::epp
