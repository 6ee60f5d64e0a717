#include <gmock/gmock.h>

#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class WorkerCatalogTest : public test::SelectionFixture {};

// The texts are the published ones.
TEST_F(WorkerCatalogTest, SaysWhyAWorkerCannotBeScheduled) {
  SelectorConfig config;
  config.router_queue_threshold = 1.0;
  start(config);
  WorkerSpec empty;
  empty.worker_id = 1;
  empty.data_parallel_start_rank = 4;
  empty.data_parallel_size = 2;
  const auto record = service->upsert_worker(empty);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->lifecycle, WorkerLifecycle::kIncomplete);
  EXPECT_THAT(record->not_schedulable_reasons,
              ElementsAre("endpoint is required", "block_size must be > 0",
                          "max_num_batched_tokens is required while queueing is enabled",
                          "kv_events endpoint is required for dp_rank 4",
                          "kv_events endpoint is required for dp_rank 5"));
  WorkerSpec no_ranks = spec(2);
  no_ranks.data_parallel_size = 0;
  EXPECT_THAT(service->upsert_worker(no_ranks)->not_schedulable_reasons,
              ElementsAre("data_parallel_size must be > 0"));
  EXPECT_FALSE(service->ready().ready);
}

TEST_F(WorkerCatalogTest, ACompleteWorkerIsSchedulable) {
  start();
  EXPECT_FALSE(service->ready().ready);
  const auto record = service->upsert_worker(spec(1));
  EXPECT_EQ(record->lifecycle, WorkerLifecycle::kSchedulable);
  EXPECT_THAT(record->not_schedulable_reasons, IsEmpty());
  EXPECT_TRUE(service->ready().ready);
  EXPECT_EQ(service->ready().schedulable_workers, 1u);
  EXPECT_EQ(service->list_workers().size(), 1u);
  EXPECT_TRUE(view.ranks.contains({1, 0}));
}

TEST_F(WorkerCatalogTest, WithoutEventsNoEventAddressIsNeeded) {
  start();
  WorkerSpec quiet = spec(1);
  quiet.kv_events_endpoint.clear();
  EXPECT_EQ(service->upsert_worker(quiet)->lifecycle, WorkerLifecycle::kIncomplete);
  quiet.kv_events = false;
  EXPECT_EQ(service->upsert_worker(quiet)->lifecycle, WorkerLifecycle::kSchedulable);
}

TEST_F(WorkerCatalogTest, ADecodeSelectorFollowsNoEvents) {
  start(SelectorRole::kDecode);
  WorkerSpec quiet = spec(1);
  quiet.kv_events_endpoint.clear();
  EXPECT_EQ(service->upsert_worker(quiet)->lifecycle, WorkerLifecycle::kSchedulable);
  EXPECT_FALSE(view.created);
}

TEST_F(WorkerCatalogTest, EveryRankOfADataParallelWorkerIsACandidate) {
  start();
  WorkerSpec parallel = spec(7);
  parallel.data_parallel_start_rank = 2;
  parallel.data_parallel_size = 3;
  ASSERT_EQ(service->upsert_worker(parallel)->lifecycle, WorkerLifecycle::kSchedulable);
  ASSERT_EQ(service->loads().front().loads.size(), 3u);
  book(pinned(sized("a", 160), 7, 4));
  expect_load(7, 160, 10, 1, 4);
  expect_load(7, 0, 0, 0, 2);
  EXPECT_NE(book(sized("b", 160)).facts.rank, (WorkerRank{7, 4}));
  EXPECT_EQ(reserve(pinned(sized("c", 16), 7, 1)).error().code, SelectionErrorCode::kNoEligibleWorker);
  EXPECT_EQ(reserve(pinned(sized("d", 16), 7, 5)).error().code, SelectionErrorCode::kNoEligibleWorker);
}

TEST_F(WorkerCatalogTest, RankAddressesAreTheBasePortPlusTheRank) {
  WorkerSpec worker = spec(1);
  worker.kv_events_endpoint = "tcp://host:5557";
  worker.replay_endpoint = "tcp://host:6557";
  worker.kv_events_endpoints[2] = "tcp://other:1";
  EXPECT_EQ(events_endpoint(worker, 0), "tcp://host:5557");
  EXPECT_EQ(events_endpoint(worker, 3), "tcp://host:5560");
  EXPECT_EQ(events_endpoint(worker, 2), "tcp://other:1");
  EXPECT_EQ(replay_endpoint(worker, 2), "tcp://host:6559");
  EXPECT_EQ(endpoint_for_rank("tcp://[::1]:65535", 0), "tcp://[::1]:65535");
  EXPECT_EQ(endpoint_for_rank("tcp://[::1]:65535", 1), "");
  EXPECT_EQ(endpoint_for_rank("tcp://host", 0), "");
  EXPECT_EQ(endpoint_for_rank("tcp://host:", 0), "");
  EXPECT_EQ(endpoint_for_rank("tcp://host:0", 0), "");
  EXPECT_EQ(endpoint_for_rank("tcp://host:12x", 0), "");
}

// The first schedulable worker fixes a partition's block size; a later one with another is kept, unscheduled.
TEST_F(WorkerCatalogTest, AWorkerThatHashesDifferentlyIsNotReconciled) {
  start();
  service->upsert_worker(spec(1));
  WorkerSpec other = spec(2);
  other.block_size = 32;
  const auto record = service->upsert_worker(other);
  EXPECT_EQ(record->lifecycle, WorkerLifecycle::kIncomplete);
  EXPECT_THAT(record->not_schedulable_reasons,
              ElementsAre(HasSubstr("reconciliation failed: block_size 32")));
  WorkerSpec eagle = spec(3);
  eagle.is_eagle = true;
  EXPECT_THAT(service->upsert_worker(eagle)->not_schedulable_reasons,
              ElementsAre(HasSubstr("reconciliation failed: is_eagle")));
  // When the last worker of the old kind leaves, the first of the others takes the partition.
  ASSERT_TRUE(service->delete_worker(1));
  EXPECT_EQ(service->find_worker(2)->lifecycle, WorkerLifecycle::kSchedulable);
  EXPECT_EQ(service->find_worker(3)->lifecycle, WorkerLifecycle::kIncomplete);
  EXPECT_EQ(book(sized("a", 64)).facts.block_size, 32u);
}

// Worker by worker another block size, as a rolling update does it: the last one takes the old partition with
// it, and the others' new one is there by then.
TEST_F(WorkerCatalogTest, ARollingChangeOfTheBlockSizeEndsWithAllWorkers) {
  start();
  add_workers(3);
  for (WorkerId id = 1; id <= 3; ++id) {
    WorkerSpec changed = spec(id);
    changed.block_size = 32;
    service->upsert_worker(changed);
  }
  for (const WorkerRecord& record : service->list_workers()) {
    EXPECT_EQ(record.lifecycle, WorkerLifecycle::kSchedulable) << record.spec.worker_id;
    EXPECT_TRUE(record.not_schedulable_reasons.empty());
  }
}

TEST_F(WorkerCatalogTest, AnEndedPartitionMakesRoomForAnyOther) {
  SelectorConfig config;
  config.limits.max_partitions = 1;
  start(config);
  add_workers(1);
  WorkerSpec other = spec(2);
  other.routing_group = "other";
  EXPECT_THAT(service->upsert_worker(other)->not_schedulable_reasons,
              ElementsAre(HasSubstr("too many partitions")));
  service->delete_worker(1);
  EXPECT_EQ(service->find_worker(2)->lifecycle, WorkerLifecycle::kSchedulable);
}

TEST_F(WorkerCatalogTest, AnUpsertMaySayTheCondition) {
  start();
  EXPECT_EQ(service->upsert_worker(spec(1), WorkerCondition::kUnavailable)->lifecycle,
            WorkerLifecycle::kUnschedulable);
  EXPECT_EQ(service->upsert_worker(spec(1))->lifecycle, WorkerLifecycle::kUnschedulable) << "as it was";
  EXPECT_EQ(service->upsert_worker(spec(1), WorkerCondition::kServing)->lifecycle,
            WorkerLifecycle::kSchedulable);
}

TEST_F(WorkerCatalogTest, AnUpsertIsAFullReplaceThatKeepsBookingsOnSurvivingRanks) {
  start();
  WorkerSpec worker = spec(1);
  worker.data_parallel_size = 2;
  worker.taints = {"old"};
  service->upsert_worker(worker);
  book(pinned(sized("stays", 160), 1, 0));
  book(pinned(sized("goes", 160), 1, 1));
  worker.data_parallel_size = 1;
  worker.taints = {"new"};
  service->upsert_worker(worker);
  EXPECT_EQ(service->find_worker(1)->effective_taints, std::vector<std::string>{"new"});
  expect_load(1, 160, 10, 1);
  EXPECT_EQ(*service->free_reservation({"goes"}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->free_reservation({"stays"}), LifecycleOutcome::kApplied);
  EXPECT_EQ(service->stats().lost_with_worker, 1u);
  EXPECT_FALSE(view.ranks.contains({1, 1}));
}

TEST_F(WorkerCatalogTest, AnIncompleteUpsertKeepsBookingsButTakesNoRequests) {
  start();
  service->upsert_worker(spec(1));
  book(sized("a", 160));
  WorkerSpec broken = spec(1);
  broken.endpoint.clear();
  EXPECT_EQ(service->upsert_worker(broken)->lifecycle, WorkerLifecycle::kIncomplete);
  expect_load(1, 160, 10, 1);
  EXPECT_EQ(reserve(sized("b", 16)).error().code, SelectionErrorCode::kNotReady);
}

TEST_F(WorkerCatalogTest, DrainingWorkersKeepTheirBookingsOnly) {
  start();
  add_workers(2);
  book(pinned(sized("a", 160), 1));
  const auto draining = service->mark_worker(1, WorkerCondition::kDraining);
  EXPECT_EQ(draining->lifecycle, WorkerLifecycle::kDraining);
  EXPECT_THAT(draining->not_schedulable_reasons, ElementsAre("draining"));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(book(sized(std::to_string(i), 160)).facts.rank.worker, 2u);
  expect_load(1, 160, 10, 1);
  // An upsert does not put it back to work.
  EXPECT_EQ(service->upsert_worker(spec(1))->lifecycle, WorkerLifecycle::kDraining);
  EXPECT_EQ(service->mark_worker(1, WorkerCondition::kUnavailable)->lifecycle,
            WorkerLifecycle::kUnschedulable);
  EXPECT_EQ(service->mark_worker(1, WorkerCondition::kServing)->lifecycle, WorkerLifecycle::kSchedulable);
  EXPECT_EQ(service->mark_worker(9, WorkerCondition::kServing).error().code, SelectionErrorCode::kNotFound);
}

TEST_F(WorkerCatalogTest, DeletingAWorkerFreesWhatWasBookedOnIt) {
  start();
  add_workers(2);
  book(pinned(sized("a", 160), 1));
  EXPECT_EQ(service->delete_worker(1)->spec.worker_id, 1u);
  EXPECT_EQ(service->stats().live_reservations, 0u);
  EXPECT_FALSE(view.ranks.contains({1, 0}));
  EXPECT_EQ(service->delete_worker(1).error().code, SelectionErrorCode::kNotFound);
  // It comes back without its old load.
  service->upsert_worker(spec(1));
  expect_load(1, 0, 0, 0);
}

TEST_F(WorkerCatalogTest, AnIdIsUniqueInTheServiceAndMovesBetweenPartitions) {
  start();
  service->upsert_worker(spec(1));
  WorkerSpec moved = spec(1);
  moved.model_name = "other";
  service->upsert_worker(moved);
  EXPECT_EQ(reserve(sized("a", 16)).error().code, SelectionErrorCode::kNotReady);
  SelectRequest there = sized("b", 16);
  there.model_name = "other";
  EXPECT_EQ(book(there).facts.rank.worker, 1u);
  EXPECT_EQ(service->list_workers().size(), 1u);
}

TEST_F(WorkerCatalogTest, TopologyDomainsAreTaintsAndTransferRulesConstraints) {
  start();
  WorkerSpec required = spec(1);
  required.topology_domains = {{"zone", "us-east-1a"}};
  required.kv_transfer = KvTransferRule{.domain = "zone"};
  service->upsert_worker(required);
  EXPECT_THAT(service->find_worker(1)->effective_taints, ElementsAre("dynamo.topology/zone=us-east-1a"));
  EXPECT_THAT(service->transfer_constraints(1).required_taints,
              ElementsAre("dynamo.topology/zone=us-east-1a"));
  WorkerSpec preferred = required;
  preferred.worker_id = 2;
  preferred.kv_transfer = KvTransferRule{"zone", TransferEnforcement::kPreferred, 0.5F};
  service->upsert_worker(preferred);
  EXPECT_THAT(service->transfer_constraints(2).preferred_taints,
              ElementsAre(testing::Pair("dynamo.topology/zone=us-east-1a", 0.5)));
  service->upsert_worker(spec(3));
  EXPECT_THAT(service->transfer_constraints(3).required_taints, IsEmpty());
  // A requirement that can't be told is none that may be forgotten.
  required.topology_domains.clear();
  EXPECT_THAT(service->upsert_worker(required)->not_schedulable_reasons, ElementsAre(HasSubstr("zone")));
  preferred.topology_domains.clear();
  EXPECT_EQ(service->upsert_worker(preferred)->lifecycle, WorkerLifecycle::kSchedulable);
}

TEST_F(WorkerCatalogTest, IsBounded) {
  SelectorConfig config;
  config.limits.max_workers = 2;
  config.limits.max_ranks = 4;
  config.limits.max_partitions = 1;
  start(config);
  service->upsert_worker(spec(1));
  WorkerSpec wide = spec(2);
  wide.data_parallel_size = 4;
  EXPECT_EQ(service->upsert_worker(wide).error().code, SelectionErrorCode::kBadRequest);
  wide.data_parallel_size = 3;
  EXPECT_EQ(service->upsert_worker(wide)->lifecycle, WorkerLifecycle::kSchedulable);
  EXPECT_EQ(service->upsert_worker(spec(3)).error().code, SelectionErrorCode::kBadRequest);
  wide.data_parallel_size = 2;
  wide.routing_group = "another";
  EXPECT_THAT(service->upsert_worker(wide)->not_schedulable_reasons,
              ElementsAre(HasSubstr("too many partitions")));
  WorkerSpec text = spec(1);
  text.endpoint.assign(5000, 'x');
  EXPECT_EQ(service->upsert_worker(text).error().code, SelectionErrorCode::kBadRequest);
  WorkerSpec ranks = spec(1);
  ranks.data_parallel_start_rank = UINT32_MAX;
  EXPECT_EQ(service->upsert_worker(ranks).error().code, SelectionErrorCode::kBadRequest);
}

TEST_F(WorkerCatalogTest, APatchChangesOnlyWhatItNames) {
  start();
  WorkerSpec first = spec(1);
  first.endpoint.clear();
  first.taints = {"a"};
  ASSERT_EQ(service->upsert_worker(first)->lifecycle, WorkerLifecycle::kIncomplete);
  WorkerPatch patch;
  patch.endpoint = "10.0.0.9:8000";
  auto record = service->patch_worker(1, patch);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->lifecycle, WorkerLifecycle::kSchedulable);
  EXPECT_EQ(record->spec.endpoint, "10.0.0.9:8000");
  EXPECT_EQ(record->spec.taints, (std::set<std::string>{"a"}));
  EXPECT_EQ(record->spec.max_num_batched_tokens, 1000u);

  // Every field, each on its own, and nothing beside it.
  patch = WorkerPatch{};
  patch.taints = std::set<std::string>{"b", "c"};
  patch.total_kv_blocks = 5;
  patch.topology_domains = std::map<std::string, std::string>{{"zone", "z"}};
  patch.stable_routing_id = "s";
  patch.router_hint_worker_type = "vllm";
  patch.router_hint_source_control_endpoints = std::map<DpRank, std::string>{{0, "tcp://h:1"}};
  record = service->patch_worker(1, patch);
  EXPECT_EQ(record->spec.taints, (std::set<std::string>{"b", "c"}));
  EXPECT_EQ(record->spec.total_kv_blocks, 5u);
  EXPECT_TRUE(record->has_taint("dynamo.topology/zone=z"));
  EXPECT_EQ(record->spec.endpoint, "10.0.0.9:8000");
  EXPECT_EQ(service->find_worker(1)->spec.router_hint_worker_type, "vllm");

  // Bookings on surviving ranks stay; a move to another partition drops them, as an upsert would.
  book(sized("a", 100));
  patch = WorkerPatch{};
  patch.data_parallel_size = 2;
  ASSERT_TRUE(service->patch_worker(1, patch));
  EXPECT_EQ(load(1).active_requests, 1u);
  EXPECT_EQ(load(1, 1).active_requests, 0u);
  patch = WorkerPatch{};
  patch.model_name = "other";
  ASSERT_TRUE(service->patch_worker(1, patch));
  EXPECT_EQ(service->stats().live_reservations, 0u);

  EXPECT_EQ(service->patch_worker(9, patch).error().code, SelectionErrorCode::kNotFound);
  patch.endpoint = std::string(5000, 'x');
  EXPECT_EQ(service->patch_worker(1, patch).error().code, SelectionErrorCode::kBadRequest);
  EXPECT_EQ(service->find_worker(1)->spec.endpoint, "10.0.0.9:8000");
}

TEST_F(WorkerCatalogTest, ABatchAnswersByPosition) {
  start();
  WorkerSpec broken = spec(2);
  broken.endpoint = std::string(5000, 'x');
  WorkerSpec elsewhere = spec(3);
  elsewhere.routing_group = "blue";
  const auto answers = service->upsert_workers({spec(1), broken, elsewhere});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0]->spec.worker_id, 1u);
  EXPECT_EQ(answers[1].error().code, SelectionErrorCode::kBadRequest);
  EXPECT_EQ(answers[2]->spec.worker_id, 3u);

  EXPECT_EQ(service->list_workers().size(), 2u);
  ASSERT_EQ(service->list_workers("default", "blue").size(), 1u);
  EXPECT_EQ(service->list_workers("default", "blue").front().spec.worker_id, 3u);
  EXPECT_TRUE(service->list_workers("none").empty());
  EXPECT_EQ(service->loads().size(), 2u);
  ASSERT_EQ(service->loads(std::nullopt, "blue").size(), 1u);
  EXPECT_EQ(service->loads(std::nullopt, "blue").front().partition.routing_group, "blue");
}

}  // namespace
}  // namespace handoff::epp
