#include "epp/planning/worker_directory.hpp"

#include "planning_fixture.hpp"

namespace handoff::epp {
namespace {

using WorkerDirectoryTest = PlanningFixture;

TEST_F(WorkerDirectoryTest, PutsEachRoleIntoItsSelector) {
  start();
  add_prefill("p", 1);
  add_decode("d", 2);
  EXPECT_EQ(prefill->list_workers().size(), 1U);
  EXPECT_EQ(destination->list_workers().size(), 1U);
  EXPECT_EQ(prefill->find_worker(1)->spec.endpoint, "127.0.0.1:1");
  EXPECT_EQ(directory->view()->destinations.count("127.0.0.1:2"), 1U);
  EXPECT_EQ(directory->view()->destinations.count("127.0.0.1:1"), 0U) << "prefill is no destination";
}

TEST_F(WorkerDirectoryTest, ExcludesWhatHasNoRole) {
  start();
  directory->on_endpoint(endpoint("x", std::nullopt, 3));
  EXPECT_EQ(directory->excluded(), std::vector<std::string>{"x: role_label_missing"});
  EXPECT_TRUE(destination->list_workers().empty());
  add_decode("x", 3);
  EXPECT_TRUE(directory->excluded().empty());
  EXPECT_EQ(destination->list_workers().size(), 1U);
}

TEST_F(WorkerDirectoryTest, MovesAWorkerThatChangesItsRole) {
  start();
  add_prefill("x", 3);
  add_decode("x", 3);
  EXPECT_TRUE(prefill->list_workers().empty());
  EXPECT_EQ(destination->list_workers().size(), 1U);
  directory->on_endpoint(endpoint("x", std::nullopt, 3));
  EXPECT_TRUE(destination->list_workers().empty());
  EXPECT_TRUE(directory->view()->workers.empty());
}

TEST_F(WorkerDirectoryTest, SchedulesOnlyWhatIsReady) {
  start();
  Endpoint sick = endpoint("d", EndpointRole::kDecode, 2);
  sick.ready = false;
  sick.not_ready_reason = "not probed yet";
  directory->on_endpoint(sick);
  EXPECT_EQ(destination->ready().schedulable_workers, 0U);
  add_decode("d", 2);
  EXPECT_EQ(destination->ready().schedulable_workers, 1U);
  directory->on_endpoint(sick);
  EXPECT_EQ(destination->ready().schedulable_workers, 0U);
  EXPECT_EQ(destination->list_workers().size(), 1U) << "its bookings stay";
  directory->on_endpoint_removed("d");
  EXPECT_TRUE(destination->list_workers().empty());
  directory->on_endpoint_removed("d");
}

TEST_F(WorkerDirectoryTest, IgnoresRolesInAggregatedMode) {
  start(false);
  add_prefill("p", 1);
  add_decode("d", 2);
  EXPECT_EQ(destination->list_workers().size(), 2U);
}

TEST_F(WorkerDirectoryTest, TellsTheSelectorsWhereEventsAre) {
  config.use_kv_events = true;
  config.kv_replay_port = 6000;
  prefill_queue_threshold = std::nullopt;
  start();
  config.use_kv_events = true;
  Endpoint made = endpoint("p", EndpointRole::kPrefill, 1);
  made.address = "fd00::1";
  made.kv_event_port = 7000;
  made.data_parallel_size = 2;
  directory->on_endpoint(made);
  const auto spec = prefill->find_worker(1)->spec;
  EXPECT_EQ(spec.kv_events_endpoint, "tcp://[fd00::1]:7000");
  EXPECT_EQ(spec.replay_endpoint, "tcp://[fd00::1]:6000");
  EXPECT_EQ(spec.data_parallel_size, 2U);
  EXPECT_TRUE(spec.kv_events);
  add_decode("d", 2);
  EXPECT_FALSE(destination->find_worker(2)->spec.kv_events) << "decode does not look at caches";
  made.kv_events = false;
  directory->on_endpoint(made);
  EXPECT_FALSE(prefill->find_worker(1)->spec.kv_events);
}

}  // namespace
}  // namespace handoff::epp
