#include "tests/unit/backends/trtllm/trtllm_case.hpp"

namespace handoff::plugin_test {

TrtllmCase::TrtllmCase(const std::map<std::string, std::string>& settings)
    : plugin_(HANDOFF_TRTLLM_PLUGIN), backend_(plugin_, host_, settings) {}

TrtllmCase::~TrtllmCase() {
  for (const auto& refusal : host_.refusals) ADD_FAILURE() << refusal;
}

std::unique_ptr<Exchange> TrtllmCase::begin(std::string_view path, std::string body,
                                            std::vector<Header> headers) {
  return std::make_unique<Exchange>(
      backend_, Request{.path = std::string(path), .body = std::move(body), .headers = std::move(headers)});
}

Action TrtllmCase::only(const std::vector<Action>& actions) {
  EXPECT_EQ(actions.size(), 1U);
  return actions.empty() ? Action{} : actions.front();
}

Leg TrtllmCase::context(std::string_view path, std::string body, std::vector<Header> headers) {
  const auto exchange = begin(path, std::move(body), std::move(headers));
  const auto action = only(exchange->begin_actions());
  EXPECT_EQ(action.kind, Action::Kind::start) << action.reason << action.code;
  EXPECT_EQ(action.leg.role, HANDOFF_ROLE_PREFILL);
  return action.leg;
}

Action TrtllmCase::after_reply(std::string_view path, std::string body, std::string reply) {
  const auto exchange = begin(path, std::move(body));
  return only(exchange->deliver(leg_done(1, 200, std::move(reply))));
}

Leg TrtllmCase::generation(std::string_view path, std::string body, std::string reply) {
  const auto action = after_reply(path, std::move(body), std::move(reply));
  EXPECT_EQ(action.kind, Action::Kind::start) << action.reason << action.code << action.message;
  EXPECT_EQ(action.leg.role, HANDOFF_ROLE_DECODE);
  return action.leg;
}

std::string TrtllmCase::decode_only_reason(std::string_view path, std::string body) {
  const auto exchange = begin(path, std::move(body));
  const auto action = only(exchange->begin_actions());
  if (action.kind == Action::Kind::start) return "";
  EXPECT_EQ(action.kind, Action::Kind::decode_only);
  return action.reason;
}

}  // namespace handoff::plugin_test
