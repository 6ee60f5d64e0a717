#include "sglang_scheduler.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <cstdio>
#include <utility>

namespace handoff::mock {
namespace {

// The check does not see uses within co_await.
using net::experimental::awaitable_operators::operator||;  // NOLINT(misc-unused-using-decls)

bool is_fake(const SglangItem& item) {
  return item.host == kFakeBootstrapHost;
}

std::string seconds_text(std::chrono::microseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(time.count()) / 1e6);
  return text;
}

}  // namespace

void SglangScheduler::fail(SglangTask& task, int status, std::string message, const char* reason,
                           bool retryable) {
  task.failure = SglangFailure{status, std::move(message), reason, retryable};
}

bool SglangScheduler::queue_full() const {
  const std::int64_t most = engine_.config().sglang.max_queued;
  return most > 0 && engine_.gauges().queued >= most;
}

void SglangScheduler::admit(std::shared_ptr<SglangTask> task) {
  tasks_.emplace(task->item.rid, task);
  spawn(engine_.io(), run(std::move(task)), "sglang item");
}

void SglangScheduler::abort(const std::string& rid, bool all) {
  ++counters_.aborts_received;
  if (all || rid.empty()) ++counters_.aborts_of_all;
  bool matched = false;
  bool lost = false;
  for (auto at = tasks_.lower_bound(rid); at != tasks_.end(); ++at) {
    if (!all && !at->first.starts_with(rid)) break;
    if (at->second->over) continue;
    if (at->second->reachable) {
      at->second->aborted = true;
      matched = true;
    } else {
      lost = true;
    }
  }
  if (matched) ++counters_.aborts_matched;
  if (lost) ++counters_.aborts_lost;
  engine_.notify();
}

void SglangScheduler::disconnected(std::shared_ptr<SglangTask> task, std::chrono::microseconds after) {
  if (task->over) return;
  ++counters_.disconnects;
  spawn(engine_.io(), notice(std::move(task), after), "disconnect");
}

Awaitable<void> SglangScheduler::notice(std::shared_ptr<SglangTask> task, std::chrono::microseconds after) {
  co_await sleep_for(after);
  // By now it has reached the scheduler; if not, the engine looks again.
  while (!task->over && !task->reachable) co_await sleep_for(after + std::chrono::milliseconds(1));
  task->aborted = true;
  engine_.notify();
}

Awaitable<void> SglangScheduler::until_stopped(SglangTask& task) {
  while (!task.aborted && !engine_.dead()) co_await engine_.changed().wait_until(Clock::now() + kForEver);
}

Awaitable<void> SglangScheduler::run(std::shared_ptr<SglangTask> task) {
  // Gone when the item is over, however it ends.
  struct Leaving {
    SglangScheduler& scheduler;
    std::shared_ptr<SglangTask>& task;
    ~Leaving() {
      task->over = true;
      auto [at, end] = scheduler.tasks_.equal_range(task->item.rid);
      for (; at != end; ++at) {
        if (at->second == task) {
          scheduler.tasks_.erase(at);
          break;
        }
      }
      if (task->item.room) {
        const auto room = scheduler.rooms_.find(*task->item.room);
        if (room != scheduler.rooms_.end() && room->second == task.get()) scheduler.rooms_.erase(room);
      }
      scheduler.engine_.notify();
    }
  } leaving{*this, task};
  EnginePlace place(engine_, task->item.request, task->rank);
  const auto result = co_await (work(*task, place) || until_stopped(*task));
  if (result.index() == 1) {
    if (engine_.dead()) {
      fail(*task, 500, "The scheduler has died.", "PD_LOCAL_FATAL");
    } else {
      fail(*task, 0, "Abort in waiting queue", "PD_ABORTED");
      co_return;  // counted as aborted
    }
  }
  place.end(task->failure ? EnginePlace::Ended::kErrored : EnginePlace::Ended::kFinished);
}

Awaitable<void> SglangScheduler::work(SglangTask& task, EnginePlace& place) {
  const MockConfig& config = engine_.config();
  const SglangMode mode = config.sglang.mode;
  co_await sleep_for(config.sglang.admission);
  task.reachable = true;
  engine_.notify();
  ++counters_.ranks[task.rank];
  if (mode != SglangMode::kNull && !task.item.room) {
    ++counters_.missing_room;
    fail(task, 400,
         "Invalid request: Disaggregated request received without bootstrap room id. req.rid='" +
             task.item.rid + "'",
         "PD_REQUEST_INVALID");
    co_return;
  }
  if (task.told_to_fail) {
    task.failure = task.told_to_fail;
    co_return;
  }
  if (mode != SglangMode::kNull && !is_fake(task.item) && !take_room(task)) {
    engine_.die("two live requests with one bootstrap_room");
    co_return;
  }
  co_await place.wait_for_blocks();
  if (mode == SglangMode::kPrefill) {
    co_await prefill(task, place);
  } else if (mode == SglangMode::kDecode && !is_fake(task.item)) {
    co_await decode(task);
  } else {
    co_await compute_prompt(task, place);
  }
  if (task.failure || engine_.dead()) co_return;
  task.first_token = true;
  engine_.notify();
  co_await generate(task, place);
}

bool SglangScheduler::take_room(SglangTask& task) {
  ++counters_.rooms_created;
  if (rooms_.emplace(*task.item.room, &task).second) return true;
  ++counters_.rooms_duplicate;
  return false;
}

// Waits until D is in the bootstrap queue; false when it did not come in time.
Awaitable<bool> SglangScheduler::met(SglangTask& task) {
  const auto limit = engine_.config().scaled(300.0);
  const auto until = Clock::now() + limit;
  while (!rendezvous_.joined(*task.item.room, task.rank)) {
    if (engine_.is_over(until)) {
      ++counters_.rooms_timed_out;
      fail(task, 500,
           "Prefill bootstrap failed for request rank=0 req.rid='" + task.item.rid + "' timed out after " +
               seconds_text(limit) + "s in KVPoll.Bootstrapping",
           "PD_RENDEZVOUS_TIMEOUT", true);
      co_return false;
    }
    co_await engine_.changed().wait_until(until);
  }
  co_return true;
}

Awaitable<void> SglangScheduler::prefill(SglangTask& task, EnginePlace& place) {
  if (is_fake(task.item)) {
    co_await compute_prompt(task, place);
    co_return;
  }
  const std::int64_t ranks = engine_.config().data_parallel_size;
  if (task.rank != static_cast<std::int64_t>(*task.item.room % static_cast<std::uint64_t>(ranks))) {
    fail(task, 500, "Prefill bootstrap failed: routed_dp_rank contradicts bootstrap_room",
         "PD_PROTOCOL_MISMATCH");
    co_return;
  }
  bool there = co_await met(task);
  if (!there) co_return;
  co_await compute_prompt(task, place);
  // D may have left while the prompt was computed: then its peer is waited for until the time is over.
  while (there) {
    co_await sleep_for(engine_.config().kv_load);
    const SglangHandover handover{hash_text(task.item.request.prompt_texts.front()), task.cached_tokens};
    if (rendezvous_.deliver(*task.item.room, handover)) break;
    there = co_await met(task);
  }
  task.kind = AnswerKind::kPrefill;
}

Awaitable<void> SglangScheduler::decode(SglangTask& task) {
  const std::uint64_t hash = hash_text(task.item.request.prompt_texts.front());
  const std::int64_t port = task.item.port == 0 ? 8998 : task.item.port;
  const JoinResult joined = co_await join_room(engine_, task.item.host, static_cast<std::uint16_t>(port),
                                               *task.item.room, hash, task.prefill_rank);
  const std::string room = std::to_string(*task.item.room);
  switch (joined.end) {
    case JoinEnd::kDelivered: {
      const std::int64_t tokens = task.item.request.prompt_tokens();
      engine_.counters().external_kv_transfer += tokens;
      task.cached_tokens = joined.handover.cached_tokens;
      if (joined.handover.prompt_hash == hash) co_return;
      ++engine_.counters().wrong_text;
      task.kind = AnswerKind::kWrongKv;
      co_return;
    }
    case JoinEnd::kNoHandshake:
      fail(task, 500, "Decode handshake failed for request rank=0 bootstrap_room=" + room,
           "PD_PEER_UNAVAILABLE", true);
      co_return;
    case JoinEnd::kLost:
      fail(task, 500,
           "Decode transfer failed for request rank=0 with exception KVTransferError(bootstrap_room=" + room +
               "): Lost connection with prefill instance",
           "PD_PEER_UNAVAILABLE", true);
      co_return;
    case JoinEnd::kTimedOut:
      ++counters_.rooms_timed_out;
      fail(task, 500,
           "Decode transfer failed for request rank=0 with exception KVTransferError(bootstrap_room=" + room +
               "): Request " + room + " timed out after " + seconds_text(engine_.config().scaled(300.0)) +
               "s in KVPoll.WaitingForInput",
           "PD_TRANSFER_TIMEOUT", true);
      co_return;
  }
}

// D comes here for a fake peer only: it has no prefix cache (it would need
// --disaggregation-decode-enable-radix-cache), so what it computes is not kept.
Awaitable<void> SglangScheduler::compute_prompt(SglangTask& task, EnginePlace& place) {
  Counters& counters = engine_.counters();
  const std::int64_t tokens = task.item.request.prompt_tokens();
  task.cached_tokens = place.cached_tokens(0);
  counters.cache_queries += tokens;
  counters.local_cache_hit += task.cached_tokens;
  counters.local_compute += tokens - task.cached_tokens;
  co_await place.compute(tokens - task.cached_tokens);
  if (engine_.config().sglang.mode != SglangMode::kDecode) place.store_prompts();
}

Awaitable<void> SglangScheduler::generate(SglangTask& task, EnginePlace& place) {
  const auto answers = make_answers(task.item.request, task.kind);
  const std::int64_t tokens = answers.front().token_count();
  engine_.counters().generation += tokens;
  co_await sleep_for(engine_.config().decode_per_token * tokens);
  // The radix tree takes an answer in when it has ended.
  if (engine_.config().sglang.mode == SglangMode::kNull)
    place.store_answers(answers, answers.front().tokens.size());
}

}  // namespace handoff::mock
