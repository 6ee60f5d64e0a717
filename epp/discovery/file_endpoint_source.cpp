#include "epp/discovery/file_endpoint_source.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "epp/discovery/endpoints_file.hpp"
#include "epp/discovery/file_watch.hpp"
#include "epp/discovery/health_probe.hpp"
#include "epp/discovery/net.hpp"
#include "shared/config/setting_file.hpp"
#include "shared/telemetry/log.hpp"
#include "shared/telemetry/rate_limited_warning.hpp"

namespace handoff::epp {
namespace {

using telemetry::Level;
using telemetry::LogLine;
using ErrorCode = boost::system::error_code;

// The first view is told as current after this even when a name server does not answer.
constexpr std::chrono::seconds kFirstResolveLimit{5};

config::SettingFile read_file(const std::string& path) {
  return config::read_setting_file(path, kMaxEndpointsFileBytes);
}

// One endpoint of the present file. Shared with its prober, which outlives its removal by one step.
struct Tracked {
  Tracked(net::io_context& loop, FileEndpoint from_file, HealthThresholds thresholds)
      : file(std::move(from_file)), health(thresholds), pause(loop) {}

  FileEndpoint file;
  std::string address;  // resolved; empty: not yet
  HealthTracker health;
  net::steady_timer pause;
  bool is_gone = false;
  bool is_probed = false;
  std::optional<Endpoint> told;
};

class FileEndpointSource final : public EndpointSource {
 public:
  FileEndpointSource(FileDiscoveryOptions options, std::string text, std::vector<FileEndpoint> first)
      : options_(std::move(options)), text_(std::move(text)), first_(std::move(first)) {}

  ~FileEndpointSource() override { stop(); }

  void start(EndpointListener& listener) override {
    listener_ = &listener;
    thread_ = std::thread([this] {
      begin();
      loop_.run();
    });
  }

  void stop() override {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
    reader_.join();
  }

 private:
  using ParsedEndpoints = std::variant<std::vector<FileEndpoint>, EndpointsFileError>;
  struct Reading {
    config::SettingFile file;
    std::optional<ParsedEndpoints> parsed;  // unless it says what it said before
  };

  void begin() {
    watch_.emplace(loop_, options_.path, [this] { reload(); });
    apply(std::exchange(first_, {}));
    first_resolve_.expires_after(kFirstResolveLimit);
    first_resolve_.async_wait([this](ErrorCode ec) {
      if (!ec) say_synced();
    });
    resolve_all();
    reload();  // it may have changed between the first reading and the watch
    refresh_later();
  }

  void refresh_later() {
    refresh_.expires_after(options_.refresh_interval);
    refresh_.async_wait([this](ErrorCode ec) {
      if (ec) return;
      watch_->watch_again();
      reload();
      resolve_all();
      refresh_later();
    });
  }

  // Large files take their time: health is followed meanwhile. One reading at a time; what changed during one
  // is read after it.
  void reload() {
    if (std::exchange(is_reading_, true)) {
      is_reading_old_ = true;
      return;
    }
    net::post(reader_, [this] {
      Reading reading;
      reading.file = read_file(options_.path);
      if (reading.file.error.empty() && text_ != reading.file.text)
        reading.parsed = parse_endpoints_file(reading.file.text);
      net::post(loop_, [this, reading = std::move(reading)]() mutable { on_read(std::move(reading)); });
    });
  }

  void on_read(Reading reading) {
    is_reading_ = false;
    if (!reading.file.error.empty()) {
      complain(reading.file.error);
      text_.reset();  // what is there again is read again, and told
    } else if (reading.parsed) {
      text_ = std::move(reading.file.text);
      take(std::move(*reading.parsed));
    }
    if (std::exchange(is_reading_old_, false)) reload();
  }

  void take(ParsedEndpoints parsed) {
    if (const auto* error = std::get_if<EndpointsFileError>(&parsed)) {
      complain(error->text);
      return;
    }
    complaint_.clear();
    auto& endpoints = std::get<std::vector<FileEndpoint>>(parsed);
    LogLine(Level::info, "endpoints_file_read")
        .field("path", options_.path)
        .field("endpoints", endpoints.size());
    apply(std::move(endpoints));
    resolve_all();
  }

  // Once per problem: many events may come of one bad file.
  void complain(const std::string& why) {
    if (std::exchange(complaint_, why) == why) return;
    LogLine(Level::warn, "endpoints_file_refused")
        .field("path", options_.path)
        .field("reason", why)
        .field("endpoints_kept", tracked_.size());
  }

  void apply(std::vector<FileEndpoint> endpoints) {
    std::map<std::string, FileEndpoint> wanted;
    for (FileEndpoint& one : endpoints) {
      if (!options_.disaggregated && one.endpoint.role) {
        LogLine(Level::warn, "endpoint_role_ignored")
            .field("endpoint", one.endpoint.name)
            .field("reason", "the mode is aggregated");
        one.endpoint.role.reset();
      }
      wanted.emplace(one.endpoint.name, std::move(one));
    }
    for (auto it = tracked_.begin(); it != tracked_.end();) {
      const auto here = it++;
      if (!wanted.contains(here->first)) remove(here);
    }
    for (auto& [name, file] : wanted) update(name, std::move(file));
  }

  void remove(std::map<std::string, std::shared_ptr<Tracked>>::iterator entry) {
    entry->second->is_gone = true;
    entry->second->pause.cancel();
    const bool was_told = entry->second->told.has_value();
    const std::string name = entry->first;
    tracked_.erase(entry);
    if (was_told) tell_removed(name);
  }

  void update(const std::string& name, FileEndpoint file) {
    const auto known = tracked_.find(name);
    if (known != tracked_.end()) {
      Tracked& entry = *known->second;
      if (entry.file == file) return;
      const bool same_place = entry.file.endpoint.address == file.endpoint.address &&
                              entry.file.endpoint.port == file.endpoint.port &&
                              entry.file.health_path == file.health_path;
      if (same_place) {
        entry.file = std::move(file);
        tell(entry);
        probe_when_ready(known->second);
        return;
      }
      // What was learned of the old place says nothing about the new one.
      entry.is_gone = true;
      entry.pause.cancel();
      auto told = entry.told;
      known->second = std::make_shared<Tracked>(loop_, std::move(file), options_.thresholds);
      known->second->told = std::move(told);
      place(known->second);
      // Until its name is resolved, the old place must not be used.
      if (known->second->address.empty() && known->second->told) {
        known->second->told.reset();
        tell_removed(name);
      }
      return;
    }
    auto entry = std::make_shared<Tracked>(loop_, std::move(file), options_.thresholds);
    tracked_.emplace(name, entry);
    place(entry);
  }

  // A new entry, or one at a new place.
  void place(const std::shared_ptr<Tracked>& entry) {
    if (entry->file.is_name) return;  // resolve_all() goes on
    entry->address = net::ip::make_address(entry->file.endpoint.address).to_string();
    tell(*entry);
    probe_when_ready(entry);
  }

  bool lacks_role(const Tracked& entry) const { return options_.disaggregated && !entry.file.endpoint.role; }

  void probe_when_ready(const std::shared_ptr<Tracked>& entry) {
    if (entry->is_probed || entry->address.empty() || lacks_role(*entry)) return;
    entry->is_probed = true;
    net::co_spawn(loop_, probe(entry),
                  [](const std::exception_ptr& error) { report("health_probe", error); });
  }

  net::awaitable<void> probe(std::shared_ptr<Tracked> entry) {
    bool is_first = true;
    while (!entry->is_gone) {
      const tcp::endpoint place(net::ip::make_address(entry->address), entry->file.endpoint.port);
      const std::string address = entry->address;
      const auto began = std::chrono::steady_clock::now();
      ProbeOutcome outcome = co_await probe_health(place, entry->file.health_path, options_.health_timeout);
      if (entry->is_gone) co_return;
      if (outcome.is_ours) {
        warn_of_skipped(entry->file.endpoint.name, outcome.failure);
      } else if (address == entry->address) {
        entry->health.on_probe(std::move(outcome.failure));
        tell(*entry);
      }  // else resolved anew meanwhile: that was an answer of another place
      entry->pause.expires_at(
          began + (is_first ? first_pause(entry->file.endpoint.worker_id, options_.health_interval)
                            : options_.health_interval));
      is_first = false;
      co_await entry->pause.async_wait(kUseTuple);
    }
  }

  void warn_of_skipped(const std::string& endpoint, const std::string& reason) {
    if (const auto suppressed = skipped_.try_pass()) {
      LogLine(Level::warn, "probe_skipped")
          .field("endpoint", endpoint)
          .field("reason", reason)
          .field("suppressed", *suppressed);
    }
  }

  void resolve_all() {
    for (const auto& [name, entry] : tracked_) {
      if (!entry->file.is_name) continue;
      ++resolving_;
      net::co_spawn(loop_, resolve(entry), [this](const std::exception_ptr& error) {
        report("resolve", error);
        if (--resolving_ == 0) say_synced();
      });
    }
    if (resolving_ == 0) say_synced();
  }

  net::awaitable<void> resolve(std::shared_ptr<Tracked> entry) {
    tcp::resolver resolver(loop_);
    const std::string host = entry->file.endpoint.address;
    const auto [error, found] =
        co_await resolver.async_resolve(host, std::string(), tcp::resolver::numeric_service, kUseTuple);
    if (entry->is_gone) co_return;
    std::vector<std::string> addresses;
    for (const auto& one : found) addresses.push_back(one.endpoint().address().to_string());
    if (error || addresses.empty()) {
      LogLine(Level::warn, "endpoint_not_resolved")
          .field("endpoint", entry->file.endpoint.name)
          .field("host", host)
          .field("reason", error ? error.message() : std::string("no addresses"))
          .field("kept_address", entry->address);
      co_return;
    }
    // As long as the one in use is among them it stays; else the smallest, so that replicas agree.
    if (std::find(addresses.begin(), addresses.end(), entry->address) != addresses.end()) co_return;
    entry->address = *std::min_element(addresses.begin(), addresses.end());
    entry->health = HealthTracker(options_.thresholds);
    tell(*entry);
    entry->pause.cancel();
    probe_when_ready(entry);
  }

  void tell(Tracked& entry) {
    if (entry.address.empty()) return;
    Endpoint now = entry.file.endpoint;
    now.address = entry.address;
    if (lacks_role(entry)) {
      now.not_ready_reason = "no role: prefill or decode is needed in disaggregated mode";
    } else {
      now.ready = entry.health.is_healthy();
      now.not_ready_reason = entry.health.reason();
    }
    if (entry.told == now) return;
    const bool is_news = !entry.told || entry.told->ready != now.ready || !now.ready;
    entry.told = now;
    if (is_news) {
      LogLine(Level::info, now.ready ? "endpoint_ready" : "endpoint_not_ready")
          .field("endpoint", now.name)
          .field("address", socket_address(now.address, now.port))
          .field("reason", now.not_ready_reason);
    }
    listener_->on_endpoint(now);
    end_batch_later();
  }

  void tell_removed(const std::string& name) {
    listener_->on_endpoint_removed(name);
    end_batch_later();
  }

  // After what is already waiting on the loop: probes of thousands of endpoints end in the same moment.
  void end_batch_later() {
    if (std::exchange(is_batch_open_, true)) return;
    net::post(loop_, [this] { end_batch(); });
  }

  void end_batch() {
    if (listener_->on_batch_end()) {
      net::post(loop_, [this] { end_batch(); });
      return;
    }
    is_batch_open_ = false;
    if (is_sync_due_) say_synced();
  }

  // What is known has been told, or is being told.
  void say_synced() {
    first_resolve_.cancel();
    if (is_synced_) return;
    is_sync_due_ = is_batch_open_;
    if (is_sync_due_) return;
    is_synced_ = true;
    listener_->on_synced(true);
  }

  static void report(const char* what, const std::exception_ptr& error) {
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      LogLine(Level::error, "discovery_failed").field("task", what).field("reason", e.what());
    }
  }

  const FileDiscoveryOptions options_;
  EndpointListener* listener_ = nullptr;
  net::io_context loop_{1};
  net::executor_work_guard<net::io_context::executor_type> work_ = net::make_work_guard(loop_);
  std::optional<FileWatch> watch_;
  net::steady_timer refresh_{loop_};
  net::steady_timer first_resolve_{loop_};
  net::thread_pool reader_{1};
  bool is_reading_ = false;
  bool is_reading_old_ = false;      // it may have changed since that began
  std::optional<std::string> text_;  // while it is read, nobody's to change
  std::vector<FileEndpoint> first_;
  std::string complaint_;
  std::map<std::string, std::shared_ptr<Tracked>> tracked_;
  std::size_t resolving_ = 0;
  telemetry::RateLimitedWarning skipped_{std::chrono::seconds(30)};
  bool is_synced_ = false;
  bool is_sync_due_ = false;  // at the end of the batch
  bool is_batch_open_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<EndpointSource> make_file_endpoint_source(FileDiscoveryOptions options, std::string& error) {
  config::SettingFile file = read_file(options.path);
  if (!file.error.empty()) {
    error = options.path + ": " + file.error;
    return nullptr;
  }
  auto parsed = parse_endpoints_file(file.text);
  if (const auto* wrong = std::get_if<EndpointsFileError>(&parsed)) {
    error = options.path + ": " + wrong->text;
    return nullptr;
  }
  return std::make_unique<FileEndpointSource>(std::move(options), std::move(file.text),
                                              std::get<std::vector<FileEndpoint>>(std::move(parsed)));
}

}  // namespace handoff::epp
