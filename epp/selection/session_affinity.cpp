#include "epp/selection/session_affinity.hpp"

namespace handoff::epp {

std::optional<WorkerRank> SessionAffinity::find(std::string_view session, SteadyTime now) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second->expires <= now) return std::nullopt;
  return found->second->rank;
}

bool SessionAffinity::bind(std::string_view session, WorkerRank rank, SteadyTime now) {
  if (const auto found = sessions_.find(session); found != sessions_.end()) {
    found->second->rank = rank;
    found->second->expires = now + config_.ttl;
    order_.splice(order_.end(), order_, found->second);
    return true;
  }
  drop_expired(now);
  if (sessions_.size() >= config_.max_sessions) {
    if (config_.mode == AffinityMode::kHard) return false;
    sessions_.erase(order_.front().id);
    order_.pop_front();
  }
  order_.push_back({std::string(session), rank, now + config_.ttl});
  sessions_.emplace(order_.back().id, std::prev(order_.end()));
  return true;
}

void SessionAffinity::end(std::string_view session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const auto node = found->second;
  sessions_.erase(found);
  order_.erase(node);
}

void SessionAffinity::forget_worker(WorkerId worker) {
  for (auto node = order_.begin(); node != order_.end();) {
    if (node->rank.worker == worker) {
      sessions_.erase(node->id);
      node = order_.erase(node);
    } else {
      ++node;
    }
  }
}

void SessionAffinity::drop_expired(SteadyTime now) {
  while (!order_.empty() && order_.front().expires <= now) {
    sessions_.erase(order_.front().id);
    order_.pop_front();
  }
}

}  // namespace handoff::epp
