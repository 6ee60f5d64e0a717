#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Choice : public test::SelectionFixture {
 protected:
  const CandidateExplanation& row(const Explanation& explanation, WorkerId worker) {
    return *std::find_if(explanation.candidates.begin(), explanation.candidates.end(),
                         [&](const auto& candidate) { return candidate.rank.worker == worker; });
  }
};

TEST_F(Choice, PrefersTheWarmerOfTwoIdleWorkers) {
  start();
  add_workers(3);
  view.set({2, 0}, 1);
  view.set({3, 0}, 3);
  EXPECT_EQ(ask(request("a", hashed({1, 2, 3, 4})))->facts.rank.worker, 3u);
}

TEST_F(Choice, LeavesAWarmWorkerThatIsTooBusy) {
  start();
  add_workers(2);
  view.set({1, 0}, 3);
  // 1: (96 + 64) / 16 - 3 + 6 + 4 = 17; 2: 64 / 16 + 4 = 8
  book(pinned(sized("load", 96), 1));
  EXPECT_EQ(ask(request("a", hashed({1, 2, 3, 4})))->facts.rank.worker, 2u);
}

TEST_F(Choice, EqualRequestsAgainstEqualStateChooseEqually) {
  std::vector<WorkerId> first;
  for (int round = 0; round < 2; ++round) {
    start();
    // Another order of arrival, the same choices.
    for (WorkerId i = 1; i <= 8; ++i) ASSERT_TRUE(service->upsert_worker(spec(round == 0 ? i : 9 - i)));
    std::vector<WorkerId> chosen;
    for (int i = 0; i < 64; ++i) chosen.push_back(book(sized("r" + std::to_string(i), 16)).facts.rank.worker);
    if (round == 0) {
      first = chosen;
    } else {
      EXPECT_EQ(chosen, first);
    }
  }
  // And the ties were not all given to one worker.
  EXPECT_GT(std::set<WorkerId>(first.begin(), first.begin() + 8).size(), 4u);
}

TEST_F(Choice, AStableRoutingIdKeepsTheTieBreakOfANewWorkerId) {
  std::vector<std::string> chosen[2];
  for (const WorkerId base : {WorkerId{0}, WorkerId{100}}) {
    start();
    for (WorkerId i = 1; i <= 5; ++i) {
      WorkerSpec made = spec(base + i);
      made.stable_routing_id = "pod-" + std::to_string(i);
      ASSERT_TRUE(service->upsert_worker(made));
    }
    for (int i = 0; i < 20; ++i) {
      chosen[base / 100].push_back(ask(sized("r" + std::to_string(i), 16))->worker->spec.stable_routing_id);
    }
  }
  EXPECT_EQ(chosen[0], chosen[1]);
}

TEST_F(Choice, ATemperatureSpreadsWhatCostAloneWouldNot) {
  start();
  add_workers(2);
  view.set({1, 0}, 2);
  int warm = 0;
  for (int i = 0; i < 4000; ++i) {
    SelectRequest wanted = request("r" + std::to_string(i), hashed({1, 2}));
    EXPECT_EQ(ask(wanted)->facts.rank.worker, 1u);
    wanted.overrides.router_temperature = 1.0;
    warm += ask(wanted)->facts.rank.worker == 1 ? 1 : 0;
  }
  // e^0 against e^-1
  EXPECT_NEAR(warm, 4000 / (1 + std::exp(-1.0)), 150);
}

TEST_F(Choice, APinIsTakenOrItsErrorSaysWhyNot) {
  SelectorConfig config;
  config.overload.active_prefill_tokens = 50;
  start(config);
  add_workers(3);
  view.set({1, 0}, 2);
  EXPECT_EQ(ask(pinned(request("a", hashed({1, 2})), 2))->facts.rank.worker, 2u);
  SelectRequest outside = pinned(sized("b", 16), 2);
  outside.allowed_workers = {{1, 3}};
  EXPECT_EQ(ask(outside).error().code, SelectionErrorCode::kPinnedNotAllowed);
  book(pinned(sized("load", 51), 2));
  EXPECT_EQ(ask(pinned(sized("c", 16), 2)).error().code, SelectionErrorCode::kPinnedOverloaded);
  EXPECT_EQ(ask(pinned(sized("d", 16), 9)).error().code, SelectionErrorCode::kNoEligibleWorker);
  service->mark_worker(3, WorkerCondition::kDraining);
  EXPECT_EQ(ask(pinned(sized("e", 16), 3)).error().code, SelectionErrorCode::kNoEligibleWorker);
}

TEST_F(Choice, AnAllowListNarrowsAndNeverWidens) {
  start();
  add_workers(4);
  SelectRequest wanted = sized("a", 16);
  wanted.allowed_workers = {{4, 3, 99}};
  for (int i = 0; i < 20; ++i) {
    wanted.selection_id = std::to_string(i);
    const auto worker = ask(wanted)->facts.rank.worker;
    EXPECT_TRUE(worker == 3 || worker == 4);
  }
  wanted.allowed_workers = {{99}};
  EXPECT_EQ(ask(wanted).error().code, SelectionErrorCode::kNoEligibleWorker);
  wanted.allowed_workers = std::vector<WorkerId>{};
  EXPECT_EQ(ask(wanted).error().code, SelectionErrorCode::kNoEligibleWorker);
}

TEST_F(Choice, RequiresEveryRequiredTaint) {
  start();
  add_workers(1);
  WorkerSpec tainted = spec(2);
  tainted.taints = {"gpu=h200", "tenant=a"};
  tainted.topology_domains = {{"zone", "z1"}};
  service->upsert_worker(tainted);
  SelectRequest wanted = sized("a", 16);
  wanted.constraints.required_taints = {"gpu=h200", "dynamo.topology/zone=z1"};
  EXPECT_EQ(ask(wanted)->facts.rank.worker, 2u);
  wanted.constraints.required_taints.push_back("tenant=b");
  EXPECT_EQ(ask(wanted).error().code, SelectionErrorCode::kNoEligibleWorker);
}

TEST_F(Choice, PreferredTaintsTiltTheCost) {
  start();
  add_workers(2);
  WorkerSpec near = spec(3);
  near.taints = {"near"};
  service->upsert_worker(near);
  SelectRequest wanted = sized("a", 160);
  wanted.constraints.preferred_taints = {{"near", 5.0}};
  // e^-1 of 20 against 20: up to 1.7 times the load is still better.
  EXPECT_EQ(ask(wanted)->facts.rank.worker, 3u);
  wanted.constraints.preferred_taints = {{"near", -5.0}};
  EXPECT_NE(ask(wanted)->facts.rank.worker, 3u);
}

TEST_F(Choice, OverloadedWorkersTakeNothing) {
  SelectorConfig config;
  config.overload.active_prefill_tokens_frac = 0.5;
  config.overload.active_decode_blocks_frac = 0.5;
  start(config);
  WorkerSpec small = spec(1);
  small.total_kv_blocks = 20;
  service->upsert_worker(small);
  service->upsert_worker(spec(2));
  // Strictly more: 500 of 1000 tokens is not over a half.
  SelectRequest half = pinned(sized("half", 500), 2);
  book(half);
  EXPECT_TRUE(ask(pinned(sized("q", 1), 2)));
  book(pinned(sized("over", 1), 2));
  EXPECT_EQ(ask(sized("q", 1))->facts.rank.worker, 1u);
  // 11 of 20 blocks
  SelectRequest blocks = pinned(sized("blocks", 11 * 16), 1);
  blocks.overrides.track_prefill_tokens = false;
  book(blocks);
  EXPECT_EQ(ask(sized("q", 1)).error().code, SelectionErrorCode::kAllOverloaded);
  service->free_reservation({"over"});
  EXPECT_EQ(ask(sized("q", 1))->facts.rank.worker, 2u);
}

TEST_F(Choice, TheAbsoluteOverloadThresholdIsStrict) {
  SelectorConfig config;
  config.overload.active_prefill_tokens = 500;
  start(config);
  add_workers(1);
  book(sized("a", 500));
  EXPECT_TRUE(ask(sized("q", 1)));
  book(sized("b", 1));
  EXPECT_EQ(ask(sized("q", 1)).error().code, SelectionErrorCode::kAllOverloaded);
}

TEST_F(Choice, AnAffinityTargetIsTakenWhileItIsEligible) {
  SelectorConfig config;
  config.overload.active_prefill_tokens = 100;
  start(config);
  add_workers(2);
  WorkerSpec parallel = spec(3);
  parallel.data_parallel_size = 2;
  service->upsert_worker(parallel);
  view.set({1, 0}, 2);
  SelectRequest wanted = request("a", hashed({1, 2}));
  wanted.affinity_target = WorkerTarget{3, 1};
  EXPECT_EQ(ask(wanted)->facts.rank, (WorkerRank{3, 1}));
  wanted.affinity_target = WorkerTarget{3, {}};
  EXPECT_EQ(ask(wanted)->facts.rank.worker, 3u);
  book(pinned(sized("x", 200), 3, 1));
  EXPECT_EQ(ask(wanted)->facts.rank, (WorkerRank{3, 0}));
  wanted.affinity_target = WorkerTarget{3, 1};
  EXPECT_EQ(ask(wanted)->facts.rank.worker, 1u);
  wanted.affinity_target = WorkerTarget{77, {}};
  EXPECT_EQ(ask(wanted)->facts.rank.worker, 1u);
}

SelectRequest in_session(SelectRequest wanted, std::string session, bool final = false) {
  wanted.session = SessionRef{std::move(session), final};
  return wanted;
}

TEST_F(Choice, ASoftSessionStaysWhereItWas) {
  SelectorConfig config;
  config.affinity.mode = AffinityMode::kSoft;
  config.affinity.ttl = test::seconds(60);
  start(config);
  add_workers(4);
  const auto home = book(in_session(sized("a", 160), "s")).facts.rank.worker;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(book(in_session(sized("b" + std::to_string(i), 160), "s")).facts.rank.worker, home);
  }
  // A question neither binds nor needs a binding.
  EXPECT_EQ(ask(in_session(sized("q", 160), "s"))->facts.rank.worker, home);
  EXPECT_NE(ask(in_session(sized("q", 160), "unknown"))->facts.rank.worker, home);
  EXPECT_EQ(service->stats().sessions, 1u);
  clock.advance(test::seconds(60));
  EXPECT_NE(ask(in_session(sized("q", 160), "s"))->facts.rank.worker, home);
}

TEST_F(Choice, AFinalRequestEndsItsSession) {
  SelectorConfig config;
  config.affinity.mode = AffinityMode::kHard;
  start(config);
  add_workers(2);
  const auto home = book(in_session(sized("a", 160), "s")).facts.rank.worker;
  EXPECT_EQ(book(in_session(sized("b", 160), "s", true)).facts.rank.worker, home);
  EXPECT_EQ(service->stats().sessions, 0u);
}

TEST_F(Choice, AHardSessionRebindsOrRejectsByRule) {
  for (const auto rule : {AffinityLossRule::kRebind, AffinityLossRule::kReject}) {
    SelectorConfig config;
    config.affinity.mode = AffinityMode::kHard;
    config.affinity.on_loss = rule;
    start(config);
    add_workers(2);
    const auto home = book(in_session(sized("a", 160), "s")).facts.rank.worker;
    service->mark_worker(home, WorkerCondition::kDraining);
    const auto next = reserve(in_session(sized("b", 160), "s"));
    if (rule == AffinityLossRule::kReject) {
      EXPECT_EQ(next.error().code, SelectionErrorCode::kAffinityLost);
      // A worker that left is no reason to refuse for ever.
      ASSERT_TRUE(service->delete_worker(home));
      EXPECT_TRUE(reserve(in_session(sized("c", 160), "s")));
    } else {
      ASSERT_TRUE(next);
      EXPECT_NE(next->facts.rank.worker, home);
      service->mark_worker(home, WorkerCondition::kServing);
      EXPECT_NE(book(in_session(sized("c", 160), "s")).facts.rank.worker, home);
    }
  }
}

TEST_F(Choice, AWorkersSessionsLeaveWithIt) {
  SelectorConfig config;
  config.affinity.mode = AffinityMode::kHard;
  start(config);
  add_workers(2);
  const auto home = book(in_session(sized("a", 160), "s")).facts.rank.worker;
  service->delete_worker(home);
  EXPECT_EQ(service->stats().sessions, 0u);
  // It comes again as another process: it has nothing of the session.
  service->upsert_worker(spec(home));
  book(pinned(sized("b", 900), home));
  EXPECT_NE(book(in_session(sized("c", 160), "s")).facts.rank.worker, home);
}

TEST_F(Choice, AFullAffinityTableLeavesNewSessionsUnbound) {
  SelectorConfig config;
  config.affinity.mode = AffinityMode::kHard;
  config.affinity.max_sessions = 2;
  start(config);
  add_workers(2);
  for (const char* session : {"a", "b", "c"}) book(in_session(sized(session, 16), session));
  EXPECT_EQ(service->stats().sessions, 2u);
  EXPECT_EQ(service->stats().affinity_table_full, 1u);
}

TEST_F(Choice, ExplainsOnRequestOnly) {
  SelectorConfig config;
  config.overload.active_prefill_tokens = 500;
  start(config);
  add_workers(4);
  view.set({1, 0}, 2, 1);
  book(pinned(sized("load", 96), 2));
  book(pinned(sized("too much", 501), 3));
  service->mark_worker(4, WorkerCondition::kDraining);
  SelectRequest wanted = request("a", hashed({1, 2, 3, 4}));
  EXPECT_EQ(ask(wanted)->explanation, nullptr);
  wanted.explain = true;
  const auto answer = ask(wanted);
  ASSERT_NE(answer->explanation, nullptr);
  const Explanation& why = *answer->explanation;
  ASSERT_EQ(why.candidates.size(), 4u);
  EXPECT_EQ(why.query.isl_tokens, 64u);
  EXPECT_EQ(why.tied, 1u);
  EXPECT_EQ(row(why, 1).eligibility, Eligibility::kEligible);
  EXPECT_TRUE(row(why, 1).chosen);
  EXPECT_DOUBLE_EQ(row(why, 1).terms.credit, 2.75);
  EXPECT_DOUBLE_EQ(row(why, 1).terms.prefill_blocks, 1.25);
  EXPECT_DOUBLE_EQ(row(why, 1).terms.cost, 5.25);
  EXPECT_EQ(row(why, 1).cached_tokens, 44u);
  EXPECT_DOUBLE_EQ(row(why, 2).terms.cost, 10.0 + 10.0);
  EXPECT_FALSE(row(why, 2).chosen);
  EXPECT_EQ(row(why, 3).eligibility, Eligibility::kOverloaded);
  EXPECT_EQ(row(why, 4).eligibility, Eligibility::kNotSchedulable);
  wanted.affinity_target = WorkerTarget{2, {}};
  const auto narrowed = ask(wanted);
  EXPECT_EQ(narrowed->explanation->narrowed_by, "affinity");
  EXPECT_EQ(row(*narrowed->explanation, 1).eligibility, Eligibility::kNotTheTarget);
  EXPECT_TRUE(row(*narrowed->explanation, 2).chosen);
}

TEST_F(Choice, AnswersWhatIfQuestions) {
  start();
  add_workers(2);
  view.set({2, 0}, 1, 1, 1);
  book(pinned(request("load", hashed({1, 2})), 1));
  SelectRequest wanted = request("", hashed({1, 2, 3, 4}));
  wanted.shared_cache_hits = {{0, 2}, {3, 4}};
  const auto loads = service->potential_loads(wanted);
  ASSERT_EQ(loads->size(), 2u);
  EXPECT_EQ((*loads)[0].potential_prefill_tokens, 32u + 64u);
  EXPECT_EQ((*loads)[0].potential_decode_blocks, 4u);
  EXPECT_EQ((*loads)[0].active_requests, 1u);
  EXPECT_EQ((*loads)[1].potential_prefill_tokens, 64u - 32u);
  EXPECT_EQ((*loads)[1].potential_decode_blocks, 4u);
  const auto scores = service->overlap_scores(wanted);
  EXPECT_EQ(scores->block_size, 16u);
  EXPECT_EQ(scores->num_blocks, 4u);
  const OverlapScoreRow& warm = scores->workers[1];
  EXPECT_EQ(warm.device_blocks, 1u);
  EXPECT_EQ(warm.host_pinned_blocks, 2u);
  EXPECT_EQ(warm.disk_blocks, 3u);
  EXPECT_EQ(warm.host_pinned_extension_blocks, 1u);
  EXPECT_EQ(warm.disk_extension_blocks, 1u);
  EXPECT_EQ(warm.shared_beyond_device_blocks, 2u);
  EXPECT_DOUBLE_EQ(warm.router_credit_blocks, 1 + 0.75 + 0.25);
  EXPECT_EQ(scores->workers[0].shared_beyond_device_blocks, 3u);
  EXPECT_EQ(service->stats().live_reservations, 1u);
}

TEST_F(Choice, HashesTokensLikeTheIndex) {
  start();
  WorkerSpec small = spec(1);
  small.block_size = 4;
  service->upsert_worker(small);
  const std::vector<std::uint32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  TokenPrompt prompt;
  prompt.token_ids = tokens;
  SelectRequest wanted = request("a", prompt);
  wanted.return_booking_facts = true;
  // Golden values of Dynamo's own tests.
  EXPECT_EQ(ask(wanted)->sequence_hashes,
            (std::vector<std::uint64_t>{14643705804678351452u, 4945711292740353085u, 12583592247330656132u}));
  prompt.cache_salt = "tenant-a";
  wanted.prompt = prompt;
  EXPECT_EQ(ask(wanted)->sequence_hashes,
            (std::vector<std::uint64_t>{5738685477468498325u, 1076233986426276607u, 14251413665512820044u}));
  prompt.cache_salt.clear();
  prompt.is_eagle = true;
  wanted.prompt = prompt;
  EXPECT_EQ(ask(wanted)->sequence_hashes.size(), 3u);  // (13 - 1) / 4
  EXPECT_EQ(ask(wanted)->facts.isl_tokens, 13u);
}

TEST_F(Choice, APromptShorterThanABlockIsRoutedByLoad) {
  start();
  add_workers(1);
  const std::vector<std::uint32_t> tokens{1, 2, 3};
  TokenPrompt prompt;
  prompt.token_ids = tokens;
  const auto answer = ask(request("a", prompt));
  EXPECT_EQ(answer->facts.effective_prefill_tokens, 3u);
  EXPECT_EQ(view.matches, 0);
}

TEST_F(Choice, RefusesMalformedRequests) {
  SelectorConfig config;
  config.limits.max_prompt_tokens = 1000;
  start(config);
  add_workers(1);
  struct Row {
    const char* why;
    std::function<void(SelectRequest&)> spoil;
  };
  const Row rows[] = {
      {"no tokens", [](auto& r) { r.prompt = TokenPrompt{}; }},
      {"isl 0", [](auto& r) { r.prompt = SizedPrompt{0}; }},
      {"isl 0 with hashes",
       [](auto& r) {
         r.prompt = HashedPrompt{{1}, 0};
       }},
      {"too long", [](auto& r) { r.prompt = SizedPrompt{1001}; }},
      {"more hashes than blocks",
       [](auto& r) {
         r.prompt = HashedPrompt{{1, 2}, 31};
       }},
      {"long id", [](auto& r) { r.selection_id.assign(257, 'x'); }},
      {"long model", [](auto& r) { r.model_name.assign(5000, 'x'); }},
      {"long class", [](auto& r) { r.policy_class.assign(5000, 'x'); }},
      {"long session",
       [](auto& r) {
         r.session = SessionRef{std::string(257, 'x'), false};
       }},
      {"empty session", [](auto& r) { r.session = SessionRef{}; }},
      {"credit below 0", [](auto& r) { r.overrides.overlap_score_credit = -0.1; }},
      {"credit nan", [](auto& r) { r.overrides.overlap_score_credit = kNan; }},
      {"scale below 0", [](auto& r) { r.overrides.prefill_load_scale = -1; }},
      {"temperature below 0", [](auto& r) { r.overrides.router_temperature = -1; }},
      {"temperature nan", [](auto& r) { r.overrides.router_temperature = kNan; }},
      {"shared above 1", [](auto& r) { r.overrides.shared_cache_multiplier = 1.1; }},
      {"jump nan", [](auto& r) { r.priority_jump = kNan; }},
      {"taint weight nan",
       [](auto& r) {
         r.constraints.preferred_taints = {{"t", kNan}};
       }},
      {"too many taints", [](auto& r) { r.constraints.required_taints.resize(300); }},
      {"descending ranges",
       [](auto& r) {
         r.shared_cache_hits = {{4, 5}, {1, 2}};
       }},
  };
  for (const Row& row : rows) {
    SelectRequest wanted = sized("a", 16);
    row.spoil(wanted);
    const auto answer = reserve(wanted);
    ASSERT_FALSE(answer) << row.why;
    if (std::string_view(row.why) != "long model") {
      EXPECT_EQ(answer.error().code, SelectionErrorCode::kBadRequest) << row.why;
    }
  }
  EXPECT_TRUE(reserve(sized("a", 16)));
  EXPECT_EQ(service->free_reservation({""}).error().code, SelectionErrorCode::kBadRequest);
  EXPECT_EQ(service->prefill_complete({std::string(300, 'x')}).error().code, SelectionErrorCode::kBadRequest);
}

TEST_F(Choice, SaysThatNobodyIsReady) {
  start();
  EXPECT_EQ(ask(sized("a", 1)).error().code, SelectionErrorCode::kNotReady);
  add_workers(1);
  service->mark_worker(1, WorkerCondition::kUnavailable);
  EXPECT_EQ(ask(sized("a", 1)).error().code, SelectionErrorCode::kNotReady);
  service->shutdown();
  EXPECT_EQ(ask(sized("a", 1)).error().code, SelectionErrorCode::kShuttingDown);
  EXPECT_FALSE(service->ready().ready);
}

TEST_F(Choice, RefusesABadConfigurationWithAllItsProblems) {
  SelectorConfig config;
  config.cost.temperature = -1;
  config.cost.prefill_load_scale = -1;
  const auto created = SelectionService::create(config, system_environment());
  ASSERT_FALSE(created);
  EXPECT_NE(created.error().message.find("router_temperature"), std::string::npos);
  EXPECT_NE(created.error().message.find("prefill_load_scale"), std::string::npos);
  EXPECT_FALSE(SelectionService::create(SelectorConfig{}, SelectionEnvironment{}));
}

TEST_F(Choice, AnAdapterNarrowsToThoseWhoHaveIt) {
  lora_workers = [](const PartitionKey& partition,
                    std::string_view adapter) -> std::optional<std::vector<WorkerId>> {
    EXPECT_EQ(partition.model_name, "default");
    if (adapter == "unknown") return std::nullopt;
    return std::vector<WorkerId>{3, 2};
  };
  start();
  add_workers(4);
  for (int i = 0; i < 20; ++i) {
    const auto worker = ask(request(std::to_string(i), SizedPrompt{16, "a"}))->facts.rank.worker;
    EXPECT_TRUE(worker == 2 || worker == 3);
  }
  std::set<WorkerId> any;
  for (int i = 0; i < 40; ++i) {
    any.insert(ask(request(std::to_string(i), SizedPrompt{16, "unknown"}))->facts.rank.worker);
    any.insert(ask(sized(std::to_string(i), 16))->facts.rank.worker);
  }
  EXPECT_EQ(any.size(), 4u);
  // It never widens an allow-list, and a pin stands above it.
  SelectRequest wanted = request("b", SizedPrompt{16, "a"});
  wanted.allowed_workers = {{1, 3}};
  EXPECT_EQ(ask(wanted)->facts.rank.worker, 3u);
  wanted.allowed_workers = {{1, 4}};
  EXPECT_EQ(ask(wanted).error().code, SelectionErrorCode::kNoEligibleWorker);
  EXPECT_EQ(ask(pinned(request("c", SizedPrompt{16, "a"}), 1))->facts.rank.worker, 1u);
  // Token prompts carry theirs, too; and the explanation says who was left out for it.
  const std::vector<std::uint32_t> ids(16, 7);
  TokenPrompt prompt;
  prompt.token_ids = ids;
  prompt.lora_name = "a";
  SelectRequest explained = request("d", prompt);
  explained.explain = true;
  const auto answer = ask(explained);
  EXPECT_EQ(answer->explanation->candidates[0].eligibility, Eligibility::kAdapterMissing);
  EXPECT_EQ(answer->explanation->candidates[1].eligibility, Eligibility::kEligible);
  EXPECT_EQ(to_string(Eligibility::kAdapterMissing), "adapter_missing");
}

}  // namespace
}  // namespace handoff::epp
