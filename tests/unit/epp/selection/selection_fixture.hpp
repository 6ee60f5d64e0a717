#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "epp/selection/selection_service.hpp"

namespace handoff::epp::test {

using std::chrono::seconds;

class ManualClock {
 public:
  SteadyTime now() const { return now_; }
  void advance(std::chrono::nanoseconds by) { now_ += by; }

 private:
  SteadyTime now_{seconds(1000)};
};

// Overlaps as the test says, whatever the prompt; and a record of what it was told.
struct FakeKvView {
  std::map<WorkerRank, RankOverlap> overlaps;
  std::map<WorkerRank, RankSlot> ranks;
  std::vector<std::pair<WorkerRank, std::size_t>> predictions;
  int matches = 0;
  bool created = false;

  void set(WorkerRank rank, std::uint32_t device, std::uint32_t host = 0, std::uint32_t disk = 0) {
    RankOverlap row;
    row.rank = rank;
    row.device = device;
    row.host = host;
    row.disk = disk;
    overlaps[rank] = row;
  }
};

class FakeOverlapSource final : public OverlapSource {
 public:
  explicit FakeOverlapSource(FakeKvView& view) : view_(view) { view_.created = true; }
  std::optional<RankSlot> add_rank(WorkerRank rank, const WorkerRecord&) override {
    return view_.ranks.emplace(rank, static_cast<RankSlot>(next_slot_++)).first->second;
  }
  void remove_rank(WorkerRank rank) override { view_.ranks.erase(rank); }
  void match(std::span<const std::uint64_t>, SteadyTime, std::vector<RankOverlap>& rows) override {
    ++view_.matches;
    rows.clear();
    for (auto [rank, row] : view_.overlaps) {
      const auto known = view_.ranks.find(rank);
      if (known == view_.ranks.end()) continue;
      row.slot = known->second;
      rows.push_back(row);
    }
  }
  void predict(WorkerRank rank, std::span<const std::uint64_t> hashes, SteadyTime) override {
    view_.predictions.emplace_back(rank, hashes.size());
  }
  void maintain(SteadyTime) override {}

 private:
  FakeKvView& view_;
  std::uint32_t next_slot_ = 0;
};

// One answer, as it came. Shared with the callback, which may outlive the test's view of it.
class Answer {
 public:
  SelectionCallback callback() {
    return [state = state_](Result<Selection> given) {
      state->result = std::move(given);
      ++state->times;
    };
  }
  int times() const { return state_->times; }
  bool given() const { return times() > 0; }
  bool ok() const { return given() && state_->result->has_value(); }
  Result<Selection>& result() { return *state_->result; }
  Selection* operator->() { return &state_->result->value(); }
  SelectionErrorCode error() const { return state_->result->error().code; }

 private:
  struct State {
    std::optional<Result<Selection>> result;
    int times = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

constexpr std::uint32_t kBlockSize = 16;

// A service with a clock and KV view in the test's hands. `config` may be changed until start().
class SelectionFixture : public testing::Test {
 protected:
  void start(SelectorConfig wanted) {
    SelectionEnvironment environment;
    environment.clock = [this] { return clock.now(); };
    environment.random = [this] { return ++random_calls; };
    environment.prefill_duration = prefill_duration;
    environment.lora_workers = lora_workers;
    environment.overlap_source = [this](const PartitionKey&, std::uint32_t, bool) {
      return std::make_unique<FakeOverlapSource>(view);
    };
    auto created = SelectionService::create(std::move(wanted), std::move(environment));
    ASSERT_TRUE(created) << created.error().message;
    service = std::move(*created);
  }
  void start(SelectorRole role = SelectorRole::kAggregated) { start(SelectorConfig::for_role(role)); }

  static WorkerSpec spec(WorkerId id) {
    WorkerSpec made;
    made.worker_id = id;
    made.endpoint = "10.0.0." + std::to_string(id) + ":8000";
    made.block_size = kBlockSize;
    made.kv_events_endpoint = "tcp://10.0.0." + std::to_string(id) + ":5557";
    made.max_num_batched_tokens = 1000;
    return made;
  }
  void add_workers(WorkerId count) {
    for (WorkerId id = 1; id <= count; ++id) {
      ASSERT_EQ(service->upsert_worker(spec(id))->lifecycle, WorkerLifecycle::kSchedulable);
    }
  }

  static HashedPrompt hashed(std::vector<std::uint64_t> hashes, std::uint64_t isl = 0) {
    HashedPrompt prompt;
    prompt.isl_tokens = isl == 0 ? hashes.size() * kBlockSize : isl;
    prompt.sequence_hashes = std::move(hashes);
    return prompt;
  }
  static SelectRequest request(std::string id, Prompt prompt) {
    SelectRequest made;
    made.selection_id = std::move(id);
    made.prompt = std::move(prompt);
    return made;
  }
  static SelectRequest sized(std::string id, std::uint64_t isl) {
    return request(std::move(id), SizedPrompt{isl});
  }

  // For selections that must be answered at once.
  Result<Selection> reserve(SelectRequest wanted) {
    Answer answer;
    EXPECT_FALSE(service->select_and_reserve(std::move(wanted), answer.callback()));
    EXPECT_EQ(answer.times(), 1);
    return std::move(answer.result());
  }
  // The lease is kept by the fixture, as a stream would.
  Selection book(SelectRequest wanted) {
    auto result = reserve(std::move(wanted));
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    leases.push_back(result->lease);
    return std::move(*result);
  }
  Result<Selection> ask(SelectRequest wanted) {
    Answer answer;
    EXPECT_FALSE(service->select(std::move(wanted), answer.callback()));
    EXPECT_EQ(answer.times(), 1);
    return std::move(answer.result());
  }
  static SelectRequest pinned(SelectRequest wanted, WorkerId worker, DpRank rank = 0) {
    wanted.pinned_worker = WorkerRank{worker, rank};
    return wanted;
  }

  WorkerLoad load(WorkerId worker, DpRank rank = 0) {
    for (const auto& partition : service->loads()) {
      for (const auto& row : partition.loads) {
        if (row.rank == WorkerRank{worker, rank}) return row;
      }
    }
    ADD_FAILURE() << "no load of worker " << worker;
    return {};
  }
  void expect_load(WorkerId worker, std::uint64_t prefill, std::uint64_t blocks, std::uint32_t requests,
                   DpRank rank = 0) {
    const WorkerLoad actual = load(worker, rank);
    EXPECT_EQ(actual.active_prefill_tokens, prefill) << "worker " << worker;
    EXPECT_EQ(actual.active_decode_blocks, blocks) << "worker " << worker;
    EXPECT_EQ(actual.active_requests, requests) << "worker " << worker;
  }

  ManualClock clock;
  PrefillDurationModel prefill_duration;  // both taken over by start()
  decltype(SelectionEnvironment::lora_workers) lora_workers;
  FakeKvView view;
  std::uint64_t random_calls = 0;
  std::vector<Lease> leases;
  std::unique_ptr<SelectionService> service;
};

}  // namespace handoff::epp::test
