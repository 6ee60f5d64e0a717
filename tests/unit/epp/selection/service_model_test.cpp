#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "epp/selection/mix_hash.hpp"
#include "tests/unit/epp/selection/selection_fixture.hpp"
#include "tests/unit/epp/selection/test_seed.hpp"

namespace handoff::epp {
namespace {

using test::seconds;

// The whole service beside a model that keeps plain lists and recounts everything for every choice: loads
// from all bookings, costs by the formula, the queue by searching it for the best that can go.
struct ModelBooking {
  WorkerId worker = 0;
  std::uint64_t prefill = 0;
  std::vector<std::uint64_t> hashes;
};

struct ModelWaiter {
  std::string id;
  std::vector<std::uint64_t> hashes;
  std::uint64_t isl = 0;
  std::uint32_t strict = 0;
  std::optional<WorkerId> pin;
  std::uint64_t arrival = 0;
};

class Model {
 public:
  std::set<WorkerId> workers;
  std::map<WorkerId, std::uint32_t> cached;  // device blocks, whatever the prompt
  std::map<std::string, ModelBooking> bookings;
  std::vector<ModelWaiter> waiting;
  std::map<std::string, WorkerId> placed;  // every booking that was made
  std::set<std::string> failed;
  std::set<std::string> finished;
  bool queues = false;

  std::uint64_t prefill_of(WorkerId worker) const {
    std::uint64_t sum = 0;
    for (const auto& [id, booking] : bookings) sum += booking.worker == worker ? booking.prefill : 0;
    return sum;
  }
  std::set<std::uint64_t> blocks_of(WorkerId worker) const {
    std::set<std::uint64_t> blocks;
    for (const auto& [id, booking] : bookings) {
      if (booking.worker == worker) blocks.insert(booking.hashes.begin(), booking.hashes.end());
    }
    return blocks;
  }
  std::uint32_t requests_of(WorkerId worker) const {
    std::uint32_t count = 0;
    for (const auto& [id, booking] : bookings) count += booking.worker == worker ? 1 : 0;
    return count;
  }
  std::uint64_t device(WorkerId worker, std::size_t blocks) const {
    const auto found = cached.find(worker);
    return found == cached.end() ? 0 : std::min<std::uint64_t>(found->second, blocks);
  }

  // Busy: more than 500 pending tokens (half of 1000).
  bool busy(WorkerId worker) const { return prefill_of(worker) > 500; }
  bool can_go(const ModelWaiter& waiter) const {
    if (waiter.pin) return !workers.contains(*waiter.pin) || !busy(*waiter.pin);
    return workers.empty() || !std::all_of(workers.begin(), workers.end(), [&](auto id) { return busy(id); });
  }

  double cost(const ModelWaiter& waiter, WorkerId worker) const {
    const double raw = static_cast<double>(prefill_of(worker) + waiter.isl) / test::kBlockSize;
    const double credit = static_cast<double>(device(worker, waiter.hashes.size()));
    auto blocks = blocks_of(worker);
    blocks.insert(waiter.hashes.begin(), waiter.hashes.end());
    return std::max(0.0, raw - credit) + static_cast<double>(blocks.size());
  }

  void serve(const ModelWaiter& waiter) {
    std::optional<WorkerId> best;
    for (const WorkerId worker : workers) {
      if (waiter.pin && *waiter.pin != worker) continue;
      if (!best) {
        best = worker;
        continue;
      }
      const double left = cost(waiter, worker);
      const double right = cost(waiter, *best);
      // The documented tie-break.
      const auto key = [&](WorkerId id) { return mix64(hash_text(waiter.id) ^ mix64(mix64(id))); };
      if (left < right || (left == right && key(worker) > key(*best))) best = worker;
    }
    if (!best) {
      failed.insert(waiter.id);
      return;
    }
    const std::uint64_t tokens = device(*best, waiter.hashes.size()) * test::kBlockSize;
    bookings[waiter.id] = {*best, waiter.isl - std::min(tokens, waiter.isl), waiter.hashes};
    placed[waiter.id] = *best;
  }

  // One class, first come first served, strict priority first; a pinned lane per worker beside the shared
  // one.
  void drain() {
    for (;;) {
      const ModelWaiter* next = nullptr;
      for (const auto& candidate : waiting) {
        const bool leads = std::none_of(waiting.begin(), waiting.end(), [&](const ModelWaiter& other) {
          return other.pin == candidate.pin && before(other, candidate);
        });
        if (leads && can_go(candidate) && (next == nullptr || before(candidate, *next))) next = &candidate;
      }
      if (next == nullptr) return;
      const ModelWaiter served = *next;
      std::erase_if(waiting, [&](const ModelWaiter& waiter) { return waiter.id == served.id; });
      serve(served);
    }
  }

  static bool before(const ModelWaiter& left, const ModelWaiter& right) {
    if (left.strict != right.strict) return left.strict > right.strict;
    return left.arrival < right.arrival;
  }

  void submit(const ModelWaiter& waiter) {
    if (finished.contains(waiter.id) || workers.empty() || (waiter.pin && !workers.contains(*waiter.pin))) {
      failed.insert(waiter.id);
      return;
    }
    if (queues && (!waiting.empty() || !can_go(waiter))) {
      waiting.push_back(waiter);
      drain();
      return;
    }
    serve(waiter);
  }

  void remove_worker(WorkerId worker) {
    workers.erase(worker);
    for (auto entry = bookings.begin(); entry != bookings.end();) {
      if (entry->second.worker != worker) {
        ++entry;
        continue;
      }
      finished.insert(entry->first);
      entry = bookings.erase(entry);
    }
    drain();
  }
};

class ServiceModel : public test::SelectionFixture {
 protected:
  void run(bool queues, std::uint64_t seed) {
    test::Random random(seed);
    SelectorConfig config;
    if (queues) config.router_queue_threshold = 0.5;
    config.limits.retired_id_ttl = seconds(1000000);
    start(config);
    Model model;
    model.queues = queues;
    std::map<std::string, std::optional<WorkerId>> answered;  // nullopt: an error
    std::map<std::string, PendingSelection> pending;
    std::uint64_t arrivals = 0;
    // Whatever still waits is answered while the things above exist.
    struct Closer {
      std::unique_ptr<SelectionService>& closed;
      ~Closer() { closed.reset(); }
    } const closer{service};

    for (int step = 0; step < 4000; ++step) {
      const std::uint64_t what = random.below(20);
      if (what == 0 && model.workers.size() < 6) {
        const WorkerId id = 1 + random.below(8);
        // A worker that arrives holds nothing yet.
        if (model.workers.insert(id).second) {
          model.cached.erase(id);
          view.overlaps.erase({id, 0});
        }
        ASSERT_TRUE(service->upsert_worker(spec(id)));
        model.drain();
      } else if (what == 1 && random.one_in(4) && !model.workers.empty()) {
        const WorkerId id = *model.workers.begin();
        ASSERT_TRUE(service->delete_worker(id));
        model.remove_worker(id);
      } else if (what == 2) {
        const WorkerId id = 1 + random.below(8);
        const auto blocks = static_cast<std::uint32_t>(random.below(8));
        // The view may only claim what a prompt has; prompts have at least 6 blocks.
        const std::uint32_t claimed = std::min(blocks, 6U);
        // What waits has seen the old view.
        if (!model.waiting.empty()) continue;
        model.cached[id] = claimed;
        view.set({id, 0}, claimed);
      } else if (what < 11) {
        ModelWaiter waiter;
        waiter.id = "r" + std::to_string(step);
        std::uint64_t chain = 0;
        for (std::uint64_t i = 6 + random.below(10); i > 0; --i) {
          chain = chain * 31 + 1 + random.below(2);
          waiter.hashes.push_back(chain);
        }
        waiter.isl = waiter.hashes.size() * test::kBlockSize + random.below(test::kBlockSize);
        waiter.strict = static_cast<std::uint32_t>(random.below(2));
        if (random.one_in(4) && !model.workers.empty()) waiter.pin = 1 + random.below(8);
        waiter.arrival = arrivals++;
        SelectRequest wanted = request(waiter.id, hashed(waiter.hashes, waiter.isl));
        wanted.strict_priority = waiter.strict;
        if (waiter.pin) wanted.pinned_worker = WorkerRank{*waiter.pin, 0};
        model.submit(waiter);
        pending[waiter.id] =
            service->select_and_reserve(wanted, [&, id = waiter.id](Result<Selection> result) {
              EXPECT_FALSE(answered.contains(id)) << "answered twice";
              answered[id] = std::nullopt;
              if (!result) return;
              answered[id] = result->facts.rank.worker;
              leases.push_back(result->lease);
            });
        clock.advance(std::chrono::milliseconds(1));
      } else if (what < 14 && !model.bookings.empty()) {
        const std::string id = any(model, random);
        service->prefill_complete({id});
        model.bookings[id].prefill = 0;
        model.drain();
      } else if (what < 18 && !model.bookings.empty()) {
        const std::string id = any(model, random);
        service->free_reservation({id});
        model.bookings.erase(id);
        model.finished.insert(id);
        model.drain();
      } else if (what == 18 && !model.waiting.empty()) {
        const std::string id = model.waiting[random.below(model.waiting.size())].id;
        ASSERT_TRUE(pending[id].cancel()) << id;
        std::erase_if(model.waiting, [&](const auto& waiter) { return waiter.id == id; });
        model.failed.insert(id);
        model.drain();
      } else if (what == 19) {
        service->maintain();
      }
      SCOPED_TRACE("operation " + std::to_string(what));
      ASSERT_NO_FATAL_FAILURE(compare(model, answered, step));
    }
    EXPECT_GT(model.placed.size(), 500u);
  }

  static std::string any(const Model& model, test::Random& random) {
    auto entry = model.bookings.begin();
    std::advance(entry, static_cast<std::ptrdiff_t>(random.below(model.bookings.size())));
    return entry->first;
  }

  void compare(const Model& model, const std::map<std::string, std::optional<WorkerId>>& answered, int step) {
    ASSERT_EQ(service->stats().waiting, model.waiting.size()) << "step " << step;
    ASSERT_EQ(answered.size(), model.placed.size() + model.failed.size()) << "step " << step;
    for (const auto& [id, worker] : model.placed) {
      ASSERT_EQ(answered.at(id), worker) << id << " at step " << step;
    }
    ASSERT_EQ(service->stats().live_reservations, model.bookings.size()) << "step " << step;
    for (const WorkerId worker : model.workers) {
      const WorkerLoad actual = load(worker);
      ASSERT_EQ(actual.active_prefill_tokens, model.prefill_of(worker)) << "step " << step;
      ASSERT_EQ(actual.active_decode_blocks, model.blocks_of(worker).size()) << "step " << step;
      ASSERT_EQ(actual.active_requests, model.requests_of(worker)) << "step " << step;
    }
  }
};

TEST_F(ServiceModel, AgreesWithoutAQueue) {
  run(false, test::test_seed());
}

TEST_F(ServiceModel, AgreesWithAQueue) {
  run(true, test::test_seed());
}

}  // namespace
}  // namespace handoff::epp
