#include "epp/selection/selection_error.hpp"

namespace handoff::epp {

std::string_view to_string(SelectionErrorCode code) {
  switch (code) {
    case SelectionErrorCode::kBadRequest:
      return "bad_request";
    case SelectionErrorCode::kNotReady:
      return "not_ready";
    case SelectionErrorCode::kNoEligibleWorker:
      return "no_eligible_worker";
    case SelectionErrorCode::kAllOverloaded:
      return "all_overloaded";
    case SelectionErrorCode::kPinnedNotAllowed:
      return "pinned_not_allowed";
    case SelectionErrorCode::kPinnedOverloaded:
      return "pinned_overloaded";
    case SelectionErrorCode::kAffinityLost:
      return "affinity_lost";
    case SelectionErrorCode::kQueueRejected:
      return "queue_rejected";
    case SelectionErrorCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case SelectionErrorCode::kCancelled:
      return "cancelled";
    case SelectionErrorCode::kShuttingDown:
      return "shutting_down";
    case SelectionErrorCode::kConflict:
      return "conflict";
    case SelectionErrorCode::kFinished:
      return "finished";
    case SelectionErrorCode::kNotFound:
      return "not_found";
    case SelectionErrorCode::kReservationsFull:
      return "reservations_full";
  }
  return "unknown";
}

std::string_view to_string(QueueLimitKind kind) {
  switch (kind) {
    case QueueLimitKind::kRequests:
      return "requests";
    case QueueLimitKind::kRawIslTokens:
      return "raw_isl_tokens";
    case QueueLimitKind::kCachedTokens:
      return "cached_tokens";
  }
  return "unknown";
}

}  // namespace handoff::epp
