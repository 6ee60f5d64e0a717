#include "epp/planning/refusals.hpp"

namespace handoff::epp {

Refusal refusal_of(const SelectionError& error, bool of_prefill) {
  switch (error.code) {
    case SelectionErrorCode::kBadRequest:
      return {EppError::invalid_request, error.message};
    case SelectionErrorCode::kNotReady:
    case SelectionErrorCode::kNoEligibleWorker:
    case SelectionErrorCode::kNotFound:
      return {EppError::no_ready_endpoint, of_prefill ? "No prefill endpoint is ready." : ""};
    case SelectionErrorCode::kPinnedNotAllowed:
    case SelectionErrorCode::kAffinityLost:
    case SelectionErrorCode::kShuttingDown:
      return {EppError::no_ready_endpoint, {}};
    case SelectionErrorCode::kAllOverloaded:
    case SelectionErrorCode::kPinnedOverloaded:
    case SelectionErrorCode::kQueueRejected:
    case SelectionErrorCode::kReservationsFull:
      return {EppError::overloaded, {}};
    case SelectionErrorCode::kDeadlineExceeded:
      return {EppError::overloaded, "No worker had room for the request before its deadline."};
    case SelectionErrorCode::kConflict:
    case SelectionErrorCode::kFinished:
      return {EppError::request_conflict, {}};
    case SelectionErrorCode::kCancelled:
      break;
  }
  return {EppError::internal_error, {}};
}

Refusal refusal_of(TokenizeError error) {
  switch (error) {
    case TokenizeError::kRefused:
      return {EppError::invalid_request, "The tokenizer service refuses the request."};
    case TokenizeError::kUnavailable:
      return {EppError::tokenizer_unavailable, {}};
    case TokenizeError::kTimeout:
      return {EppError::tokenizer_timeout, {}};
    case TokenizeError::kBadAnswer:
      return {EppError::tokenizer_bad_answer, {}};
    case TokenizeError::kCancelled:
      break;
  }
  return {EppError::internal_error, {}};
}

}  // namespace handoff::epp
