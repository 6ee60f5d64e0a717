#include "tests/unit/backends/sglang/sglang_case.hpp"

namespace handoff::plugin_test {

std::vector<Action> SglangCase::of_kind(const std::vector<Action>& actions, Action::Kind kind) {
  std::vector<Action> out;
  for (const auto& action : actions) {
    if (action.kind == kind) out.push_back(action);
  }
  return out;
}

Action SglangCase::only(const std::vector<Action>& actions, Action::Kind kind) {
  const auto found = of_kind(actions, kind);
  EXPECT_EQ(found.size(), 1U) << to_text(kind);
  return found.empty() ? Action{} : found.front();
}

Leg SglangCase::leg(const std::vector<Action>& actions, std::uint32_t role) {
  Leg out;
  for (const auto& action : of_kind(actions, Action::Kind::start)) {
    if (action.leg.role == role) out = action.leg;
  }
  EXPECT_NE(out.id, 0U) << "no leg of role " << role;
  return out;
}

Leg SglangCase::prefill_leg(std::string_view path, std::string body, std::vector<Header> headers) {
  return leg(begin(path, std::move(body), std::move(headers))->begin_actions(), HANDOFF_ROLE_PREFILL);
}

Leg SglangCase::decode_leg(std::string_view path, std::string body, std::vector<Header> headers) {
  return leg(begin(path, std::move(body), std::move(headers))->begin_actions(), HANDOFF_ROLE_DECODE);
}

std::vector<std::string> SglangCase::aborted(const std::vector<Action>& actions, std::uint32_t target) {
  std::vector<std::string> rids;
  for (const auto& action : of_kind(actions, Action::Kind::background)) {
    if (action.leg.target != target) continue;
    EXPECT_EQ(action.leg.path, "/abort_request");
    EXPECT_EQ(action.leg.method, "POST");
    const auto body = nlohmann::json::parse(action.leg.body);
    EXPECT_EQ(body.at("abort_all"), false);
    rids.push_back(body.at("rid"));
  }
  return rids;
}

Event SglangCase::head(std::uint32_t leg, std::uint32_t status, std::string type, std::vector<Header> more) {
  more.push_back({"content-type", std::move(type)});
  return {
      .kind = HANDOFF_EVENT_LEG_HEAD, .leg = leg, .status = status, .flags = 5, .headers = std::move(more)};
}

Event SglangCase::piece(std::uint32_t leg, std::string body) {
  return {.kind = HANDOFF_EVENT_LEG_BODY, .leg = leg, .status = 200, .body = std::move(body), .flags = 5};
}

nlohmann::json member(const Leg& leg, const std::string& name) {
  const auto body = nlohmann::json::parse(leg.body);
  return body.contains(name) ? body.at(name) : nlohmann::json("absent");
}

}  // namespace handoff::plugin_test
