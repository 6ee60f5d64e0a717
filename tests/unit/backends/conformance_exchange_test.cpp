// Rules for every plugin: how an exchange behaves, whatever client, engines and network do.
#include <algorithm>
#include <array>
#include <iterator>
#include <random>

#include "tests/unit/backends/conformance_case.hpp"

namespace handoff::plugin_test {
namespace {

class ConformanceExchange : public Conformance {
 protected:
  using Random = std::mt19937;

  static std::size_t pick(Random& random, std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
  }
  static bool chance(Random& random, int percent) {
    return std::uniform_int_distribution<int>(1, 100)(random) <= percent;
  }

  /// Something that can happen to a running leg, in a sidecar that keeps to the header.
  static Event possible_event(Random& random, const Leg& leg, const std::vector<std::string>& replies) {
    if ((leg.flags & HANDOFF_LEG_WANT_SENT) != 0 && chance(random, 20)) {
      return {.kind = HANDOFF_EVENT_LEG_SENT, .leg = leg.id, .flags = HANDOFF_REQUEST_SENT};
    }
    if ((leg.flags & HANDOFF_LEG_WANT_CONNECTED) != 0 && chance(random, 20)) {
      return {.kind = HANDOFF_EVENT_LEG_CONNECTED,
              .leg = leg.id,
              .flags = chance(random, 50) ? HANDOFF_REUSED : 0};
    }
    if ((leg.flags & HANDOFF_LEG_WANT_HEAD) != 0 && chance(random, 20)) {
      return {.kind = HANDOFF_EVENT_LEG_HEAD, .leg = leg.id, .status = 200, .flags = 3};
    }
    const bool pieces = leg.reply == HANDOFF_REPLY_STREAM || (leg.flags & HANDOFF_LEG_WANT_BODY) != 0;
    if (pieces && chance(random, 30)) {
      return {.kind = HANDOFF_EVENT_LEG_BODY, .leg = leg.id, .status = 200, .body = "data: {}\n\n"};
    }
    if (chance(random, 60)) {
      constexpr std::array<std::uint32_t, 8> kStatuses{200, 200, 200, 200, 204, 302, 429, 503};
      const bool collected = leg.reply == HANDOFF_REPLY_COLLECT;
      return leg_done(leg.id, kStatuses.at(pick(random, kStatuses.size())),
                      collected ? replies[pick(random, replies.size())] : "");
    }
    constexpr std::array<std::uint32_t, 4> kFlags{0, HANDOFF_REUSED, HANDOFF_REQUEST_SENT | HANDOFF_REUSED,
                                                  HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED};
    auto flags = kFlags.at(pick(random, kFlags.size()));
    if (leg.reply == HANDOFF_REPLY_RELAY && chance(random, 20)) {
      flags = HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED | HANDOFF_CLIENT_STARTED;
    }
    const auto cause = static_cast<std::uint32_t>(1 + pick(random, HANDOFF_CAUSE_OVERLOADED));
    return leg_failed(leg.id, cause, flags);
  }

  /// Anything at all.
  static Event impossible_event(Random& random, const std::vector<std::string>& replies) {
    Event event{.kind = static_cast<std::uint32_t>(pick(random, 9)),
                .leg = chance(random, 80) ? static_cast<std::uint32_t>(pick(random, 6)) : HANDOFF_NO_LEG,
                .status = static_cast<std::uint32_t>(pick(random, 700)),
                .body = replies[pick(random, replies.size())],
                .cause = static_cast<std::uint32_t>(pick(random, 12)),
                .flags = static_cast<std::uint32_t>(pick(random, 32)),
                .outcome = static_cast<std::uint32_t>(pick(random, 6))};
    if (event.kind == HANDOFF_EVENT_END) event.kind = HANDOFF_EVENT_LEG_DONE;
    return event;
  }

  static void expect_only_background(const std::vector<Action>& actions) {
    for (const auto& action : actions) {
      EXPECT_EQ(action.kind, Action::Kind::background) << to_text(action.kind);
    }
  }
};

TEST_P(ConformanceExchange, AnswersOrAsksAtOnceWhateverTheBodyIs) {
  for (const auto& path : paths()) {
    for (const auto& body : request_bodies("m")) {
      for (const bool with_prefill : {true, false}) {
        auto sent = request(path, body);
        if (!with_prefill) sent.prefill.reset();
        const Exchange exchange(backend_, sent);
        EXPECT_EQ(exchange.begin_status(), HANDOFF_OK) << path << " " << body;
        EXPECT_TRUE(exchange.answered() || !exchange.running().empty()) << path << " " << body;
      }
    }
  }
  EXPECT_TRUE(host_.refusals.empty()) << host_.refusals.front();
}

TEST_P(ConformanceExchange, EndIsAcceptedRightAfterBegin) {
  for (const auto& path : paths()) {
    for (const auto& body : request_bodies("m")) {
      for (const auto outcome : {HANDOFF_OUTCOME_ANSWERED, HANDOFF_OUTCOME_CLIENT_GONE,
                                 HANDOFF_OUTCOME_BROKEN, HANDOFF_OUTCOME_SHUTDOWN}) {
        Exchange exchange(backend_, request(path, body));
        expect_only_background(exchange.deliver(ended(outcome)));
        EXPECT_EQ(exchange.last_status(), HANDOFF_OK);
      }
    }
  }
  EXPECT_TRUE(host_.refusals.empty()) << host_.refusals.front();
}

// Every history that a sidecar can produce: the plugin never makes a call that does not fit, and as long as
// the client has no answer a leg runs.
TEST_P(ConformanceExchange, KeepsTheRulesInEveryPossibleHistory) {
  Random random(20240917);
  const auto bodies = request_bodies("m");
  const auto replies = reply_bodies("m");
  for (int round = 0; round < 4000; ++round) {
    const auto all_paths = paths();
    Exchange exchange(backend_, request(all_paths[pick(random, all_paths.size())], bodies[pick(random, 10)]));
    std::uint32_t sent = 0;
    for (int step = 0; step < 40 && !exchange.running().empty() && !chance(random, 3); ++step) {
      auto leg = exchange.running().begin();
      std::advance(leg, static_cast<std::ptrdiff_t>(pick(random, exchange.running().size())));
      const auto event = possible_event(random, leg->second, replies);
      if (leg->second.role == HANDOFF_ROLE_DECODE) sent |= event.flags & HANDOFF_REQUEST_SENT;
      exchange.deliver(event);
      ASSERT_EQ(exchange.last_status(), HANDOFF_OK);
      ASSERT_TRUE(exchange.answered() || !exchange.running().empty()) << "nothing runs, nothing was answered";
    }
    const auto outcome = exchange.answered() ? HANDOFF_OUTCOME_ANSWERED : HANDOFF_OUTCOME_CLIENT_GONE;
    expect_only_background(exchange.deliver(ended(outcome, sent)));
    ASSERT_EQ(exchange.last_status(), HANDOFF_OK);
    ASSERT_TRUE(host_.refusals.empty()) << host_.refusals.front();
  }
}

// A sidecar with a fault: nothing that it says may bring the plugin down, or make it act after an answer.
TEST_P(ConformanceExchange, SurvivesEventsInAnyOrder) {
  Random random(7);
  const auto bodies = request_bodies("m");
  const auto replies = reply_bodies("m");
  for (int round = 0; round < 4000; ++round) {
    const auto all_paths = paths();
    Exchange exchange(
        backend_, request(all_paths[pick(random, all_paths.size())], bodies[pick(random, bodies.size())]));
    for (int step = 0; step < 12; ++step) {
      const bool answered = exchange.answered();
      const auto event = impossible_event(random, replies);
      // A relayed leg that fails before any byte of it is out leaves the client without an answer.
      const bool may_be_unsaid =
          event.kind == HANDOFF_EVENT_LEG_FAILED && (event.flags & HANDOFF_CLIENT_STARTED) == 0;
      const auto actions = exchange.deliver(event);
      if (answered && !may_be_unsaid) expect_only_background(actions);
    }
    expect_only_background(exchange.deliver(ended(static_cast<std::uint32_t>(pick(random, 6)))));
    EXPECT_EQ(exchange.last_status(), HANDOFF_OK);
  }
}

TEST_P(ConformanceExchange, DoesNotActOnceTheClientHasItsAnswer) {
  for (const auto& path : paths()) {
    auto sent = request(path, R"({"prompt":"a"})");
    sent.prefill.reset();
    Exchange exchange(backend_, sent);
    if (!exchange.answered()) continue;
    for (std::uint32_t kind = HANDOFF_EVENT_LEG_SENT; kind < HANDOFF_EVENT_END; ++kind) {
      EXPECT_TRUE(exchange.deliver({.kind = kind, .leg = 1, .status = 200, .body = "{}"}).empty());
    }
  }
  EXPECT_TRUE(host_.refusals.empty()) << host_.refusals.front();
}

// Exchanges interleaved on one loop: nothing of one request may appear in what is sent for another.
TEST_P(ConformanceExchange, TwoExchangesDoNotMix) {
  Random random(3);
  const std::array<std::string, 2> markers{"first-of-two", "second-of-two"};
  for (int round = 0; round < 500; ++round) {
    const auto all_paths = paths();
    const auto& path = all_paths[pick(random, all_paths.size())];
    std::array<std::unique_ptr<Exchange>, 2> exchanges;
    const auto check = [&](std::size_t mine, const std::vector<Action>& actions) {
      for (const auto& action : actions) {
        const auto all = action.leg.body + action.body + action.message + action.reason;
        EXPECT_EQ(all.find(markers.at(1 - mine)), std::string::npos) << all;
      }
    };
    const auto form = pick(random, 10);
    for (const std::size_t i : {0U, 1U}) {
      exchanges.at(i) =
          std::make_unique<Exchange>(backend_, request(path, request_bodies(markers.at(i))[form]));
      check(i, exchanges.at(i)->begin_actions());
    }
    for (int step = 0; step < 10; ++step) {
      const auto i = pick(random, 2);
      auto& exchange = *exchanges.at(i);
      if (exchange.running().empty()) continue;
      const auto replies = reply_bodies(markers.at(i));
      check(i, exchange.deliver(possible_event(random, exchange.running().begin()->second, replies)));
    }
    for (const std::size_t i : {1U, 0U}) {
      check(i, exchanges.at(i)->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)));
    }
  }
  EXPECT_TRUE(host_.refusals.empty()) << host_.refusals.front();
}

INSTANTIATE_TEST_SUITE_P(conformance, ConformanceExchange, ::testing::ValuesIn(plugin_variants()),
                         variant_label);

}  // namespace
}  // namespace handoff::plugin_test
