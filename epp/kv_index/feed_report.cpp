#include "epp/kv_index/feed_report.hpp"

namespace handoff::epp {

std::string_view to_string(FeedState state) {
  switch (state) {
    case FeedState::connecting:
      return "connecting";
    case FeedState::unreachable:
      return "unreachable";
    case FeedState::following:
      return "following";
    case FeedState::disconnected:
      return "disconnected";
    case FeedState::history_lost:
      return "history_lost";
    case FeedState::replay_failed:
      return "replay_failed";
    case FeedState::undecodable:
      return "undecodable";
  }
  return "unknown";
}

}  // namespace handoff::epp
