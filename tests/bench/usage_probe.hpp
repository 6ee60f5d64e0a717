// CPU time of other processes and of the machine's cores over one measuring window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

// CPU time of a process with all its living threads. Reads the scheduler's nanoseconds of each thread and
// falls back to the 10 ms ticks of /proc/PID/stat where the kernel keeps no schedstat. 0 for a process that
// is gone.
std::uint64_t process_cpu_ns(int pid);

class UsageProbe {
 public:
  explicit UsageProbe(std::vector<int> pids) : pids_(std::move(pids)) {}

  void begin();
  void end();

  bool watches() const { return !pids_.empty(); }
  double cpu_us() const { return static_cast<double>(cpu_ns_) / 1000.0; }
  // {"0":0.93,"1":1.00}: busy share of each core, other people's work included.
  std::string cores_json() const;

 private:
  struct CoreTicks {
    std::uint64_t busy = 0;
    std::uint64_t total = 0;
  };

  static std::vector<CoreTicks> read_cores();
  std::uint64_t watched_cpu_ns() const;

  std::vector<int> pids_;
  std::uint64_t cpu_ns_ = 0;
  std::vector<CoreTicks> cores_;
};

}  // namespace bench
