#include "backends/trtllm/context_info.hpp"

#include "backends/json_text/json_text.hpp"

namespace handoff::trtllm {
namespace {

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

}  // namespace handoff::trtllm
