#include "engine.hpp"

#include <algorithm>
#include <utility>

namespace handoff::mock {

std::string Random::hex(int digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < digits; ++i) text += kDigits[ids_() & 15];
  return text;
}

std::string Random::uuid() {
  return hex(8) + "-" + hex(4) + "-4" + hex(3) + "-a" + hex(3) + "-" + hex(12);
}

Engine::Engine(net::io_context& io, const MockConfig& config)
    : io_(io),
      config_(config),
      random_(config.seed),
      engine_id_(config.engine_id.empty() ? random_.uuid() : config.engine_id),
      blocks_(config.blocks),
      prefix_cache_(blocks_, config.block_size, config.data_parallel_size, config.prefix_caching),
      expiry_timer_(io) {
  if (config.kv_events) kv_events_ = std::make_unique<KvEventPublisher>(io, config);
}

void Engine::publish_kv_events() {
  const std::vector<CacheEvent> events = prefix_cache_.take_events();
  if (kv_events_ && !events.empty()) kv_events_->publish(events);
}

bool Engine::reset_prefix_cache() {
  if (gauges_.running > 0 || leases_.live() > 0) return false;
  prefix_cache_.clear(true);
  publish_kv_events();
  return true;
}

Clock::time_point Engine::book_prefill(std::chrono::microseconds cost) {
  const auto now = Clock::now();
  if (!config_.one_prefill_at_a_time) return now + cost;
  prefill_free_at_ = std::max(prefill_free_at_, now) + cost;
  return prefill_free_at_;
}

void Engine::die(const std::string& reason) {
  if (dead_) return;
  dead_ = true;
  death_reason_ = reason;
  ++counters_.deaths;
  // The process that held the cache is gone, and with it what it had pinned.
  leases_.drop_all();
  notify();
}

void Engine::set_dead(bool dead) {
  if (dead) {
    die("asked for by a test");
  } else {
    dead_ = false;
    death_reason_.clear();
    notify();
  }
}

std::string Engine::engine_id(std::int64_t rank) const {
  return config_.data_parallel_size > 1 ? engine_id_ + "_dp" + std::to_string(rank) : engine_id_;
}

bool Engine::owns_engine_id(const std::string& id) const {
  for (std::int64_t rank = 0; rank < config_.data_parallel_size; ++rank) {
    if (id == engine_id(rank)) return true;
  }
  return false;
}

void Engine::pin(const std::string& request_id, LeaseTable::Lease lease) {
  pin(request_id, std::move(lease), config_.lease());
}

void Engine::pin(const std::string& request_id, LeaseTable::Lease lease, std::chrono::microseconds length) {
  lease.expires = Clock::now() + length;
  const auto expires = lease.expires;
  leases_.pin(request_id, std::move(lease));
  if (times_up_.leases) leases_.expire(expires);
  arm_expiry(expires);
  notify();
}

void Engine::extend(const std::string& request_id) {
  const auto until = Clock::now() + config_.lease_extension();
  ++counters_.heartbeats_received;
  if (leases_.extend(request_id, until)) arm_expiry(until);
  notify();
}

void Engine::arm_expiry(Clock::time_point when) {
  if (when >= expiry_armed_) return;
  expiry_armed_ = when;
  expiry_timer_.expires_at(when);
  expiry_timer_.async_wait([this](ErrorCode ec) {
    if (ec) return;
    expiry_armed_ = Clock::time_point::max();
    const bool any = leases_.expire(Clock::now());
    if (const auto next = leases_.next_expiry()) arm_expiry(*next);
    if (any) notify();
  });
}

void Engine::set_times_up(TimesUp up) {
  times_up_ = up;
  if (up.leases) leases_.expire(Clock::time_point::max());
  notify();
}

Awaitable<void> Engine::wait_out(Clock::time_point until) {
  while (!is_over(until)) co_await changed_.wait_until(until);
}

Reply Engine::state() const {
  const Counters& c = counters_;
  const std::int64_t pinned = leases_.pinned_blocks();
  // Blocks that a lease and a request share count as pinned.
  const std::int64_t in_use =
      std::max<std::int64_t>(0, blocks_.total() - blocks_.free() - pinned - gauges_.leaked_blocks);
  Reply s;
  s["engine_id"] = engine_id(0);
  s["role"] = role_name(config_.role);
  s["dead"] = dead_;
  s["death_reason"] = death_reason_.empty() ? Reply(nullptr) : Reply(death_reason_);
  s["deaths"] = c.deaths;
  s["blocks"] = {{"total", blocks_.total()},
                 {"free", blocks_.free()},
                 {"pinned", pinned},
                 {"in_use", in_use},
                 {"leaked", gauges_.leaked_blocks}};
  const LeaseCounters& l = leases_.counters();
  s["prefix_cache"] = {
      {"blocks", prefix_cache_.size()}, {"queries", c.cache_queries}, {"hits", c.local_cache_hit}};
  if (kv_events_) {
    const KvEventPublisher::Counters& e = kv_events_->counters();
    s["kv_events"] = {{"next_sequence", kv_events_->next_sequence()},
                      {"batches", e.batches},
                      {"lost", e.lost},
                      {"stored_blocks", e.stored_blocks},
                      {"removed_blocks", e.removed_blocks},
                      {"cleared", e.cleared},
                      {"replays", e.replays}};
  }
  s["leases"] = {{"live", leases_.live()},
                 {"created", l.created},
                 {"consumed", l.consumed},
                 {"expired", l.expired},
                 {"released", l.released}};
  s["requests"] = {{"queued", gauges_.queued}, {"running", gauges_.running}, {"hanging", gauges_.hanging},
                   {"received", c.received},   {"finished", c.finished},     {"aborted", c.aborted},
                   {"rejected", c.rejected},   {"errored", c.errored}};
  s["requests_by_path"] = Reply::object();
  for (const auto& [path, count] : c.by_path) s["requests_by_path"][path] = count;
  s["prefill_requests"] = c.prefill_requests;
  s["decode_requests"] = c.decode_requests;
  s["plain_requests"] = c.plain_requests;
  s["misrouted"] = c.misrouted;
  s["hung_incomplete"] = c.hung_incomplete;
  s["wrong_text"] = c.wrong_text;
  s["zero_token"] = c.zero_token;
  s["recomputed"] = c.recomputed;
  s["kv_load_failures"] = c.kv_load_failures;
  for (const PullOutcome outcome :
       {PullOutcome::kFresh, PullOutcome::kUnknown, PullOutcome::kConsumed, PullOutcome::kExpired,
        PullOutcome::kForeign, PullOutcome::kMismatch, PullOutcome::kTimedOut, PullOutcome::kUnreachable}) {
    const auto found = c.pulls.find(outcome);
    s["pulls"][pull_outcome_name(outcome)] = found == c.pulls.end() ? 0 : found->second;
  }
  s["tokens"] = {{"local_compute", c.local_compute},
                 {"local_cache_hit", c.local_cache_hit},
                 {"external_kv_transfer", c.external_kv_transfer},
                 {"generation", c.generation}};
  s["heartbeats"] = {{"sent", c.heartbeats_sent}, {"received", c.heartbeats_received}};
  s["releases"] = {{"sent", c.releases_sent}, {"received", c.releases_received}};
  s["connections"] = {{"open", gauges_.connections},
                      {"accepted", c.connections_accepted},
                      {"side_channel_open", gauges_.side_channel_connections}};
  s["fault_hits"] = c.fault_hits;
  return s;
}

void Engine::reset_counters() {
  counters_ = {};
  leases_.reset_counters();
  notify();
}

}  // namespace handoff::mock
