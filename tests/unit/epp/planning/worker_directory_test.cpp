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
  EXPECT_EQ(directory->view()->destination_at("127.0.0.1:2"), 2U);
  EXPECT_EQ(directory->view()->destination_at("127.0.0.1:1"), std::nullopt) << "prefill is no destination";
}

TEST_F(WorkerDirectoryTest, ExcludesWhatHasNoRole) {
  start();
  tell(endpoint("x", std::nullopt, 3));
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
  tell(endpoint("x", std::nullopt, 3));
  EXPECT_TRUE(destination->list_workers().empty());
  EXPECT_EQ(directory->view()->size(), 0U);
}

TEST_F(WorkerDirectoryTest, SchedulesOnlyWhatIsReady) {
  start();
  Endpoint sick = endpoint("d", EndpointRole::kDecode, 2);
  sick.ready = false;
  sick.not_ready_reason = "not probed yet";
  tell(sick);
  EXPECT_EQ(destination->ready().schedulable_workers, 0U);
  add_decode("d", 2);
  EXPECT_EQ(destination->ready().schedulable_workers, 1U);
  tell(sick);
  EXPECT_EQ(destination->ready().schedulable_workers, 0U);
  EXPECT_EQ(destination->list_workers().size(), 1U) << "its bookings stay";
  tell_removed("d");
  EXPECT_TRUE(destination->list_workers().empty());
  tell_removed("d");
}

// Neither the worker that is not ready yet nor the directory's lock is in the way of whoever waits. (A lock
// that is held shows as a test that does not end.)
TEST_F(WorkerDirectoryTest, AnswersWhoWaitsOnlyWithWhatIsReadyAndWithoutItsLock) {
  prefill_queue_threshold = 0.0;
  config.max_num_batched_tokens = 1000;
  start();
  add_prefill("p1", 1);
  const auto ask = [&](const std::string& id, SelectionCallback done) {
    SelectRequest request;
    request.selection_id = id;
    request.model_name = config.model_name;
    request.prompt = SizedPrompt{100};
    return prefill->select_and_reserve(std::move(request), std::move(done));
  };
  Lease busy;
  ask("a", [&](Result<Selection> answer) { busy = answer->lease; });
  std::vector<WorkerId> chosen;
  const auto note = [&](const Result<Selection>& answer) {
    chosen.push_back(answer ? answer->facts.rank.worker : 0);
    EXPECT_TRUE(directory->excluded().empty());
  };
  ask("b", note);
  Endpoint sick = endpoint("p2", EndpointRole::kPrefill, 2);
  sick.ready = false;
  tell(sick);
  EXPECT_TRUE(chosen.empty());
  add_prefill("p2", 2);
  EXPECT_EQ(chosen, std::vector<WorkerId>{2});
  ask("c", note);
  tell_removed("p1");
  tell_removed("p2");
  EXPECT_EQ(chosen, (std::vector<WorkerId>{2, 0}));
}

// A view for each endpoint would be thousands of them.
TEST_F(WorkerDirectoryTest, MakesOneViewOfABatch) {
  start();
  for (std::uint16_t port = 1; port <= 500; ++port) {
    directory->on_endpoint(endpoint("d" + std::to_string(port), EndpointRole::kDecode, port));
  }
  EXPECT_EQ(directory->view()->size(), 0U);
  EXPECT_TRUE(destination->list_workers().empty()) << "what a selector chooses must be in the view";
  end_batch();
  EXPECT_EQ(directory->views_made(), 1U);
  EXPECT_EQ(directory->view()->size(), 500U);
  EXPECT_EQ(destination->list_workers().size(), 500U);
  end_batch();
  EXPECT_EQ(directory->views_made(), 1U);
  directory->on_endpoint_removed("d1");
  directory->on_endpoint(endpoint("d501", EndpointRole::kDecode, 501));
  directory->on_endpoint_removed("d501");
  end_batch();
  EXPECT_EQ(directory->views_made(), 2U);
  EXPECT_EQ(destination->list_workers().size(), 499U);
}

// Thousands of new workers keep neither the rest of discovery waiting nor those that are in use.
TEST_F(WorkerDirectoryTest, TakesNewWorkersInInTurnsAndNewsOfKnownOnesFirst) {
  start();
  add_decode("known", 9999);
  for (std::uint16_t port = 1; port <= 500; ++port) {
    directory->on_endpoint(endpoint("d" + std::to_string(port), EndpointRole::kDecode, port));
  }
  ASSERT_TRUE(directory->on_batch_end());
  EXPECT_LT(destination->list_workers().size(), 500U);
  EXPECT_GT(destination->ready().schedulable_workers, 1U) << "those that are in are used";
  Endpoint sick = endpoint("known", EndpointRole::kDecode, 9999);
  sick.ready = false;
  directory->on_endpoint(sick);
  directory->on_endpoint_removed("d500");
  ASSERT_TRUE(directory->on_batch_end());
  EXPECT_EQ(destination->find_worker(9999)->lifecycle, WorkerLifecycle::kUnschedulable);
  EXPECT_EQ(directory->view()->find(9999)->ready, false);
  end_batch();
  EXPECT_EQ(destination->list_workers().size(), 500U);
  EXPECT_EQ(directory->view()->size(), 500U);
}

TEST_F(WorkerDirectoryTest, KnowsTheOtherWorkerWhenOneOfTwoAtAnAddressGoes) {
  start();
  add_decode("a", 5);
  Endpoint twin = endpoint("b", EndpointRole::kDecode, 5);
  twin.worker_id = 3;
  tell(twin);
  EXPECT_EQ(directory->view()->destination_at("127.0.0.1:5"), 3U);
  const auto before = directory->view();
  tell_removed("b");
  EXPECT_EQ(directory->view()->destination_at("127.0.0.1:5"), 5U);
  tell_removed("a");
  EXPECT_EQ(directory->view()->destination_at("127.0.0.1:5"), std::nullopt);
  EXPECT_EQ(before->destination_at("127.0.0.1:5"), 3U) << "a view is as of one moment";
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
  tell(made);
  const auto spec = prefill->find_worker(1)->spec;
  EXPECT_EQ(spec.kv_events_endpoint, "tcp://[fd00::1]:7000");
  EXPECT_EQ(spec.replay_endpoint, "tcp://[fd00::1]:6000");
  EXPECT_EQ(spec.data_parallel_size, 2U);
  EXPECT_TRUE(spec.kv_events);
  add_decode("d", 2);
  EXPECT_FALSE(destination->find_worker(2)->spec.kv_events) << "decode does not look at caches";
  made.kv_events = false;
  tell(made);
  EXPECT_FALSE(prefill->find_worker(1)->spec.kv_events);
}

}  // namespace
}  // namespace handoff::epp
