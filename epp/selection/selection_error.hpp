#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace handoff::epp {

// Everything a caller of the selection library can be told went wrong. The set is closed: the EPP maps each
// value to one HTTP status in its own table.
enum class SelectionErrorCode : std::uint8_t {
  kBadRequest,        // malformed prompt, identifier, override or progress report
  kNotReady,          // the partition has no schedulable worker
  kNoEligibleWorker,  // workers exist, but the request's constraints exclude all of them
  kAllOverloaded,     // every worker the constraints allow is over an overload threshold
  kPinnedNotAllowed,  // the pinned worker is outside the caller's own allow-list
  kPinnedOverloaded,  // the pinned worker is over an overload threshold
  kAffinityLost,      // hard affinity that must not rebind, and its worker cannot take the request
  kQueueRejected,     // a queue limit of the request's class is reached
  kDeadlineExceeded,  // the request's queue deadline passed before it could be dispatched
  kCancelled,         // its caller cancelled it while it waited
  kShuttingDown,      // the service stops
  kConflict,          // the reservation id is in use in a way that contradicts this call
  kFinished,          // the reservation id was already freed (or its free arrived first)
  kNotFound,          // no such worker, or no such rank of it
  kReservationsFull,  // the bound on live reservations is reached
};

// Stable lower_snake name, used for logs and metric labels.
std::string_view to_string(SelectionErrorCode code);

enum class QueueLimitKind : std::uint8_t { kRequests, kRawIslTokens, kCachedTokens };
std::string_view to_string(QueueLimitKind kind);

// Which limit turned a request away, and where it stood. Only with kQueueRejected.
struct QueueRejection {
  std::string policy_class;
  QueueLimitKind limit_kind = QueueLimitKind::kRequests;
  std::uint64_t current = 0;
  std::uint64_t limit = 0;
};

struct SelectionError {
  SelectionErrorCode code = SelectionErrorCode::kBadRequest;
  std::string message;
  std::optional<QueueRejection> rejection = std::nullopt;
};

// A value or a SelectionError. std::expected needs C++23; this is the part of it that the library uses.
template <typename T>
class Result {
 public:
  // Implicit, so that functions just return one or the other.
  Result(T&& value)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<0>, std::move(value)) {}
  Result(const T& value)  // NOLINT(google-explicit-constructor)
    requires std::is_copy_constructible_v<T>
      : state_(std::in_place_index<0>, value) {}
  Result(SelectionError error)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<1>, std::move(error)) {}
  Result(SelectionErrorCode code, std::string message)
      : state_(std::in_place_index<1>, SelectionError{code, std::move(message)}) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const SelectionError& error() const { return std::get<1>(state_); }
  SelectionError&& take_error() { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, SelectionError> state_;
};

}  // namespace handoff::epp
