#include "backends/vllm/prefill_memory.hpp"

namespace handoff::vllm {
namespace {

constexpr std::size_t kMaxRanks = 512;
constexpr std::size_t kMaxText = 512;

std::string text_of(const sdk::Object& object, std::string_view name, std::uint32_t kind) {
  const auto* member = object.find(name);
  if (member == nullptr || member->kind != kind) return {};
  const auto raw = object.raw(*member);
  return raw.size() <= kMaxText ? std::string(raw) : std::string();
}

/// `uuid_dp3`, quoted.
bool names_a_rank(std::string_view engine_id) {
  const auto mark = engine_id.rfind("_dp");
  if (mark == std::string_view::npos) return false;
  const auto digits = engine_id.substr(mark + 3, engine_id.size() - mark - 4);
  return !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
}

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
    auto engine_id = text_of(entry, "engine_id", HANDOFF_JSON_STRING);
    if (engine_id.size() > 2) ranks.push_back({.rank = std::string(rank), .engine_id = std::move(engine_id)});
  }
  return ranks;
}

std::optional<PushAddress> read_push_address(const sdk::Object& handoff, bool rank_was_chosen) {
  PushAddress out{.engine_id = text_of(handoff, "remote_engine_id", HANDOFF_JSON_STRING),
                  .host = text_of(handoff, "remote_host", HANDOFF_JSON_STRING),
                  .port = text_of(handoff, "remote_port", HANDOFF_JSON_NUMBER),
                  .tp_size = text_of(handoff, "tp_size", HANDOFF_JSON_NUMBER),
                  .pp_size = text_of(handoff, "pp_size", HANDOFF_JSON_NUMBER)};
  if (out.pp_size.empty()) out.pp_size = "1";
  if (out.engine_id.empty() || out.host.empty() || out.port.empty() || out.tp_size.empty())
    return std::nullopt;
  if (!rank_was_chosen && names_a_rank(out.engine_id)) return std::nullopt;
  return out;
}

}  // namespace handoff::vllm
