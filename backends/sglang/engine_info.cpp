#include "backends/sglang/engine_info.hpp"

#include "backends/json_text/values.hpp"

namespace handoff::sglang {
namespace {

constexpr std::size_t kMaxVersion = 64;
constexpr std::int64_t kMaxRanks = 1 << 20;

std::string_view text_of(const sdk::Object& info, std::string_view name) {
  const auto* member = info.find(name);
  if (member == nullptr) return {};
  return json_text::plain_string(info.raw(*member)).value_or(std::string_view{});
}

std::int64_t number_of(const sdk::Object& info, std::string_view name, std::int64_t most) {
  const auto* member = info.find(name);
  return member == nullptr ? -1 : json_text::plain_integer(info.raw(*member), most);
}

EngineMode mode_from(std::string_view text) {
  if (text == "prefill") return EngineMode::prefill;
  if (text == "decode") return EngineMode::decode;
  return text == "null" ? EngineMode::unified : EngineMode::unknown;
}

}  // namespace

EngineInfo read_server_info(const sdk::Host& host, std::string_view reply) {
  EngineInfo out;
  const auto info = host.json(reply);
  if (!info.is_object()) return out;
  out.mode = mode_from(text_of(info, "disaggregation_mode"));
  const auto port = number_of(info, "disaggregation_bootstrap_port", 65535);
  if (port > 0) out.bootstrap_port = static_cast<std::uint32_t>(port);
  const auto ranks = number_of(info, "dp_size", kMaxRanks);
  if (ranks > 0) out.ranks = static_cast<std::uint32_t>(ranks);
  const auto version = text_of(info, "version");
  if (version.size() <= kMaxVersion) out.version = version;
  return out;
}

}  // namespace handoff::sglang
