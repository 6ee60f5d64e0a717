// The scheduler of one SGLang engine: items, rooms, aborts. A request lives here, not in its HTTP connection:
// it goes on when the client leaves, until the engine has noticed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "answers.hpp"
#include "engine_place.hpp"
#include "sglang_rendezvous.hpp"
#include "sglang_request.hpp"

namespace handoff::mock {

// How an item failed, in the words of the engine. Status 0: ended gracefully by an abort.
struct SglangFailure {
  int status = 500;
  std::string message;
  const char* reason = "PD_LOCAL_FATAL";
  bool retryable = false;
};

// Shared by the scheduler's coroutine and the HTTP handler that waits for it.
struct SglangTask {
  SglangItem item;
  std::int64_t rank = 0;
  std::optional<std::int64_t> prefill_rank;
  std::optional<SglangFailure> told_to_fail;  // by a fault rule
  bool reachable = false;                     // aborts find it
  bool aborted = false;
  bool first_token = false;  // KV is there; `kind` says what it is worth
  bool over = false;
  AnswerKind kind = AnswerKind::kRight;
  std::int64_t cached_tokens = 0;
  std::optional<SglangFailure> failure;
};

struct SglangCounters {
  std::int64_t rooms_created = 0, rooms_duplicate = 0, rooms_timed_out = 0;
  std::int64_t aborts_received = 0, aborts_matched = 0, aborts_lost = 0, aborts_of_all = 0;
  std::int64_t disconnects = 0, missing_room = 0, health_generations = 0;
  std::map<std::int64_t, std::int64_t> ranks;
};

// Owned by the personality, single thread.
class SglangScheduler {
 public:
  SglangScheduler(Engine& engine, SglangRendezvous& rendezvous) : engine_(engine), rendezvous_(rendezvous) {}

  // Takes the item in; it runs from here on by itself.
  void admit(std::shared_ptr<SglangTask> task);
  // /abort_request: by prefix; an empty id means all.
  void abort(const std::string& rid, bool all);
  // The connection of these items is gone. The engine notices `after` that.
  void disconnected(std::shared_ptr<SglangTask> task, std::chrono::microseconds after);

  bool queue_full() const;
  std::int64_t live_rooms() const { return static_cast<std::int64_t>(rooms_.size()); }
  SglangCounters& counters() { return counters_; }
  const SglangCounters& counters() const { return counters_; }
  Engine& engine() { return engine_; }

 private:
  Awaitable<void> run(std::shared_ptr<SglangTask> task);
  Awaitable<void> work(SglangTask& task, EnginePlace& place);
  Awaitable<void> until_stopped(SglangTask& task);
  Awaitable<void> prefill(SglangTask& task, EnginePlace& place);
  Awaitable<void> decode(SglangTask& task);
  Awaitable<bool> met(SglangTask& task);
  Awaitable<void> compute_prompt(SglangTask& task, EnginePlace& place);
  Awaitable<void> generate(SglangTask& task, EnginePlace& place);
  Awaitable<void> notice(std::shared_ptr<SglangTask> task, std::chrono::microseconds after);
  bool take_room(SglangTask& task);
  static void fail(SglangTask& task, int status, std::string message, const char* reason,
                   bool retryable = false);

  Engine& engine_;
  SglangRendezvous& rendezvous_;
  std::multimap<std::string, std::shared_ptr<SglangTask>> tasks_;
  std::map<std::uint64_t, SglangTask*> rooms_;
  SglangCounters counters_;
};

}  // namespace handoff::mock
