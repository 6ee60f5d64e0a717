#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace handoff::epp {

// Lets readers walk shared memory without a lock: what a writer has unlinked is freed when no reader can
// still see it. Owned by the index. All methods from any thread; the destructor when nobody reads any more.
class ReadEpochs {
 public:
  // While one exists, nothing is freed that was reachable when it was made. Costs two atomic writes; keep it
  // for one match.
  class Pin {
   public:
    explicit Pin(std::atomic<std::uint64_t>& slot) : slot_(slot) {}
    ~Pin() { slot_.store(0, std::memory_order_release); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    std::atomic<std::uint64_t>& slot_;
  };

  ReadEpochs() = default;
  ~ReadEpochs();
  ReadEpochs(const ReadEpochs&) = delete;
  ReadEpochs& operator=(const ReadEpochs&) = delete;

  [[nodiscard]] Pin pin() const;

  // Takes over something that is unlinked already.
  void retire(void* object, void (*destroy)(void*), std::size_t bytes);
  void reclaim();

  // For things that are not memory: everything unlinked before advance() is out of sight once passed(its
  // result).
  std::uint64_t advance();
  bool passed(std::uint64_t epoch) const;

  std::size_t retired_bytes() const { return retired_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kReaders = 64;  // at once; more of them wait for a place
  struct alignas(64) ReaderSlot {
    std::atomic<std::uint64_t> epoch{0};  // 0: free
  };
  struct Retired {
    std::uint64_t epoch;
    void* object;
    void (*destroy)(void*);
    std::size_t bytes;
  };

  std::atomic<std::uint64_t> epoch_{1};
  mutable std::array<ReaderSlot, kReaders> readers_;
  std::mutex mutex_;
  std::vector<Retired> retired_;
  std::size_t reclaim_at_ = 64;
  std::atomic<std::size_t> retired_bytes_{0};
};

}  // namespace handoff::epp
