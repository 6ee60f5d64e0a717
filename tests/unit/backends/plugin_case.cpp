#include "tests/unit/backends/plugin_case.hpp"

#include <utility>

namespace handoff::plugin_test {

PluginCase::PluginCase(const std::string& plugin, const std::map<std::string, std::string>& settings)
    : plugin_(plugin), backend_(plugin_, host_, settings) {}

PluginCase::~PluginCase() {
  for (const auto& refusal : host_.refusals) ADD_FAILURE() << refusal;
}

std::unique_ptr<Exchange> PluginCase::begin(std::string_view path, std::string body,
                                            std::vector<Header> headers, Endpoint prefill) {
  return std::make_unique<Exchange>(backend_, Request{.path = std::string(path),
                                                      .body = std::move(body),
                                                      .prefill = std::move(prefill),
                                                      .headers = std::move(headers)});
}

Action PluginCase::only(const std::vector<Action>& actions) {
  EXPECT_EQ(actions.size(), 1U);
  return actions.empty() ? Action{} : actions.front();
}

Leg PluginCase::first_leg(std::string_view path, std::string body, std::vector<Header> headers) {
  const auto exchange = begin(path, std::move(body), std::move(headers));
  const auto action = only(exchange->begin_actions());
  EXPECT_EQ(action.kind, Action::Kind::start) << action.reason << action.code;
  EXPECT_EQ(action.leg.role, HANDOFF_ROLE_PREFILL);
  return action.leg;
}

Action PluginCase::after_first_reply(std::string_view path, std::string body, std::string reply,
                                     std::vector<Header> headers) {
  const auto exchange = begin(path, std::move(body), std::move(headers));
  return only(exchange->deliver(leg_done(1, 200, std::move(reply))));
}

Leg PluginCase::second_leg(std::string_view path, std::string body, std::string reply,
                           std::vector<Header> headers) {
  const auto action = after_first_reply(path, std::move(body), std::move(reply), std::move(headers));
  EXPECT_EQ(action.kind, Action::Kind::start) << action.reason << action.code << action.message;
  EXPECT_EQ(action.leg.role, HANDOFF_ROLE_DECODE);
  return action.leg;
}

std::string PluginCase::decode_only_reason(std::string_view path, std::string body) {
  const auto exchange = begin(path, std::move(body));
  const auto action = only(exchange->begin_actions());
  if (action.kind == Action::Kind::start) return "";
  EXPECT_EQ(action.kind, Action::Kind::decode_only);
  return action.reason;
}

}  // namespace handoff::plugin_test
