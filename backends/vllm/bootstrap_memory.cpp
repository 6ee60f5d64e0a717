#include "backends/vllm/bootstrap_memory.hpp"

#include <algorithm>

namespace handoff::vllm {
namespace {

constexpr std::uint64_t kMaxAgeMs = 60'000;
constexpr std::size_t kMaxEntries = 1024;
constexpr std::size_t kMaxRanks = 512;
constexpr std::size_t kMaxEngineId = 512;

}  // namespace

std::vector<PrefillRank> read_bootstrap(const sdk::Host& host, std::string_view reply) {
  std::vector<PrefillRank> ranks;
  const auto answer = host.json(reply);
  for (const auto& member : answer.members()) {
    const auto rank = sdk::view(member.name);
    const bool is_rank =
        !rank.empty() && rank.size() <= 5 && rank.find_first_not_of("0123456789") == rank.npos;
    if (!is_rank || member.kind != HANDOFF_JSON_OBJECT || ranks.size() == kMaxRanks) continue;
    const auto entry = host.json(answer.raw(member));
    const auto* id = entry.find("engine_id");
    if (id == nullptr || id->kind != HANDOFF_JSON_STRING) continue;
    const auto text = entry.raw(*id);
    if (text.size() > 2 && text.size() <= kMaxEngineId)
      ranks.push_back({.rank = std::string(rank), .engine_id = std::string(text)});
  }
  return ranks;
}

const std::vector<PrefillRank>* BootstrapMemory::find(const std::string& endpoint, std::uint64_t now_ms) {
  const auto found = known_.find(endpoint);
  if (found == known_.end()) return nullptr;
  if (now_ms > found->second.learned_ms + kMaxAgeMs) {
    known_.erase(found);
    return nullptr;
  }
  return &found->second.ranks;
}

void BootstrapMemory::remember(const std::string& endpoint, std::vector<PrefillRank> ranks,
                               std::uint64_t now_ms) {
  if (known_.size() >= kMaxEntries && known_.count(endpoint) == 0) {
    known_.erase(std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
      return a.second.learned_ms < b.second.learned_ms;
    }));
  }
  known_[endpoint] = {.ranks = std::move(ranks), .learned_ms = now_ms};
}

}  // namespace handoff::vllm
