#include "usage_probe.hpp"

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>

namespace bench {
namespace {

std::uint64_t thread_run_time_ns(const std::string& task_folder) {
  std::uint64_t total = 0;
  DIR* folder = opendir(task_folder.c_str());
  if (folder == nullptr) return 0;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(task_folder + "/" + entry->d_name + "/schedstat");
    std::uint64_t run_time = 0;
    if (file >> run_time) total += run_time;
  }
  closedir(folder);
  return total;
}

std::uint64_t stat_run_time_ns(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The name in parentheses may hold blanks; utime and stime are the 12th and 13th field behind it.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  fields >> user >> system;
  return (user + system) * (1'000'000'000U / static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK)));
}

}  // namespace

std::uint64_t process_cpu_ns(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::uint64_t exact = thread_run_time_ns(folder + "/task");
  return exact > 0 ? exact : stat_run_time_ns(folder + "/stat");
}

void UsageProbe::begin() {
  cores_ = read_cores();
  cpu_ns_ = watched_cpu_ns();
}

void UsageProbe::end() {
  cpu_ns_ = watched_cpu_ns() - cpu_ns_;
  const std::vector<CoreTicks> now = read_cores();
  for (std::size_t i = 0; i < cores_.size() && i < now.size(); ++i) {
    cores_[i] = {now[i].busy - cores_[i].busy, now[i].total - cores_[i].total};
  }
}

std::string UsageProbe::cores_json() const {
  std::string json = "{";
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    const double share = cores_[i].total == 0
                             ? 0.0
                             : static_cast<double>(cores_[i].busy) / static_cast<double>(cores_[i].total);
    char entry[48];
    std::snprintf(entry, sizeof entry, "%s\"%zu\":%.3f", i == 0 ? "" : ",", i, share);
    json += entry;
  }
  return json + "}";
}

std::vector<UsageProbe::CoreTicks> UsageProbe::read_cores() {
  std::vector<CoreTicks> cores;
  std::ifstream file("/proc/stat");
  std::string line;
  while (std::getline(file, line) && line.starts_with("cpu")) {
    if (line[3] == ' ') continue;  // the sum of all
    std::istringstream fields(line.substr(line.find(' ')));
    CoreTicks ticks;
    std::uint64_t value = 0;
    for (int i = 0; i < 8 && fields >> value; ++i) {
      ticks.total += value;
      const bool idle = i == 3 || i == 4;
      if (!idle) ticks.busy += value;
    }
    cores.push_back(ticks);
  }
  return cores;
}

std::uint64_t UsageProbe::watched_cpu_ns() const {
  return std::accumulate(pids_.begin(), pids_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, int pid) { return sum + process_cpu_ns(pid); });
}

}  // namespace bench
