#include "backends/trtllm/context_info.hpp"

#include <algorithm>

#include "backends/json_text/json_text.hpp"

namespace handoff::trtllm {
namespace {

constexpr std::uint64_t kMaxAgeMs = 60'000;
constexpr std::size_t kMaxEntries = 1024;
constexpr std::size_t kMaxParams = std::size_t{64} * 1024;

/// The string itself, or the first element of a list.
std::string_view first_string(std::string_view value) {
  json_text::Cursor cursor(value);
  if (cursor.next_token() == '[') {
    cursor.step();
    cursor.next_token();
  }
  if (cursor.look() != '"') return {};
  const auto begin = cursor.position();
  cursor.skip_string();
  return value.substr(begin, cursor.position() - begin);
}

}  // namespace

std::optional<ContextInfo> read_server_info(const sdk::Host& host, std::string_view reply) {
  const auto info = host.json(reply);
  if (!info.is_object()) return std::nullopt;
  const auto* member = info.find("disaggregated_params");
  if (member == nullptr || member->kind != HANDOFF_JSON_OBJECT) return std::nullopt;
  const auto text = info.raw(*member);
  const auto params = host.json(text);
  if (!params.is_object() || text.size() > kMaxParams) return std::nullopt;
  const auto* endpoint = params.find("ctx_info_endpoint");
  if (endpoint == nullptr) return std::nullopt;
  const auto first = first_string(params.raw(*endpoint));
  if (first.size() <= 2) return std::nullopt;
  return ContextInfo{.params = std::string(text), .endpoint = std::string(first)};
}

const ContextInfo* ContextInfoMemory::find(const std::string& endpoint, std::uint64_t now_ms) {
  const auto found = known_.find(endpoint);
  if (found == known_.end()) return nullptr;
  if (now_ms > found->second.learned_ms + kMaxAgeMs) {
    known_.erase(found);
    return nullptr;
  }
  return &found->second.info;
}

void ContextInfoMemory::remember(const std::string& endpoint, ContextInfo info, std::uint64_t now_ms) {
  if (known_.size() >= kMaxEntries && known_.count(endpoint) == 0) {
    known_.erase(std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
      return a.second.learned_ms < b.second.learned_ms;
    }));
  }
  known_[endpoint] = {.info = std::move(info), .learned_ms = now_ms};
}

}  // namespace handoff::trtllm
