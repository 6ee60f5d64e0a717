#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/backends/plugin_case.hpp"

namespace handoff::plugin_test {

inline constexpr std::string_view kChat = "/v1/chat/completions";
inline constexpr std::string_view kCompletions = "/v1/completions";
inline constexpr std::string_view kGenerate = "/generate";

inline const std::string kChatBody = R"({"messages":[{"role":"user","content":"sheep"}],"max_tokens":7})";
inline const std::string kGoodPrefill = R"({"id":"x","choices":[{"index":0,"finish_reason":"length"}]})";
inline const std::string kFirstEvent = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
inline const std::string kPrefillInfo =
    R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":1,"version":"0.5.19"})";
inline const std::string kDecodeInfo =
    R"({"disaggregation_mode":"decode","disaggregation_bootstrap_port":8999,"dp_size":1,"version":"0.5.19"})";

/// The SGLang plugin with the given settings, and shorthands for the usual course of a request. By default
/// the bootstrap port is configured, so that nobody is asked.
class SglangCase : public PluginCase {
 protected:
  explicit SglangCase(
      const std::map<std::string, std::string>& settings = {{"DYN_SIDECAR_SGLANG_BOOTSTRAP_PORT", "8998"}})
      : PluginCase(HANDOFF_SGLANG_PLUGIN, settings) {}

  /// What was asked for, by kind.
  static std::vector<Action> of_kind(const std::vector<Action>& actions, Action::Kind kind);
  static Action only(const std::vector<Action>& actions, Action::Kind kind);
  /// The leg of that role that was started; the latest if there are two.
  static Leg leg(const std::vector<Action>& actions, std::uint32_t role);
  /// The same, of a request that must be split.
  Leg prefill_leg(std::string_view path, std::string body, std::vector<Header> headers = {});
  Leg decode_leg(std::string_view path, std::string body, std::vector<Header> headers = {});
  /// The `rid`s that were aborted at that target.
  static std::vector<std::string> aborted(const std::vector<Action>& actions, std::uint32_t target);

  static Event head(std::uint32_t leg, std::uint32_t status = 200, std::string type = "text/event-stream",
                    std::vector<Header> more = {});
  static Event piece(std::uint32_t leg, std::string body);
};

/// The value of a member of a leg's body.
nlohmann::json member(const Leg& leg, const std::string& name);

}  // namespace handoff::plugin_test
