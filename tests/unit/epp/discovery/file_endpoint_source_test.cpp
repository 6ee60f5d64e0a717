#include "epp/discovery/file_endpoint_source.hpp"
#include "epp/discovery/health_probe.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace handoff::epp {
namespace {

using boost::asio::ip::tcp;
namespace fs = std::filesystem;

constexpr auto kMustNotExpire = std::chrono::seconds(60);

// Answers one request per connection with a status that the test can change; 0: hangs up.
class HealthServer {
 public:
  HealthServer() : acceptor_(loop_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~HealthServer() {
    stopping_ = true;
    boost::system::error_code ignored;
    tcp::socket(loop_).connect(acceptor_.local_endpoint(), ignored);  // wakes accept()
    thread_.join();
  }

  std::string port() const { return std::to_string(acceptor_.local_endpoint().port()); }
  void answer(int status) { status_ = status; }
  std::string last_target() {
    const std::lock_guard lock(mutex_);
    return target_;
  }

 private:
  void serve() {
    while (true) {
      tcp::socket socket(loop_);
      boost::system::error_code ec;
      acceptor_.accept(socket, ec);
      if (stopping_) return;
      boost::asio::streambuf request;
      boost::asio::read_until(socket, request, "\r\n\r\n", ec);
      if (ec) continue;
      std::istream head(&request);
      std::string method;
      std::string target;
      head >> method >> target;
      {
        const std::lock_guard lock(mutex_);
        target_ = target;
      }
      if (status_ == 0) continue;
      boost::asio::write(
          socket,
          boost::asio::buffer("HTTP/1.1 " + std::to_string(status_) + " x\r\ncontent-length: 0\r\n\r\n"), ec);
    }
  }

  boost::asio::io_context loop_;
  tcp::acceptor acceptor_;
  std::atomic<int> status_{200};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::string target_;
  std::thread thread_;
};

class Recorder final : public EndpointListener {
 public:
  void on_endpoint(const Endpoint& endpoint) override {
    const std::lock_guard lock(mutex_);
    known_[endpoint.name] = endpoint;
    changed_.notify_all();
  }
  void on_endpoint_removed(std::string_view name) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(known_.erase(std::string(name)), 1U) << name;
    changed_.notify_all();
  }
  bool on_batch_end() override {
    const std::lock_guard lock(mutex_);
    ++batches_;
    return batches_ <= turns_wanted_;
  }
  void want_turns(std::size_t turns) { turns_wanted_ = turns; }
  void on_synced(bool synced) override {
    const std::lock_guard lock(mutex_);
    batches_when_synced_ = batches_;
    synced_ = synced;
    changed_.notify_all();
  }

  template <typename Condition>
  bool wait(Condition&& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kMustNotExpire, [&] { return condition(known_, synced_); });
  }
  bool is_ready(const std::string& name, bool wanted = true) {
    return wait([&](const auto& known, bool) {
      const auto found = known.find(name);
      return found != known.end() && found->second.ready == wanted;
    });
  }
  Endpoint get(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return known_.at(name);
  }
  std::size_t batches_when_synced() {
    const std::lock_guard lock(mutex_);
    return batches_when_synced_;
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return known_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Endpoint> known_;
  bool synced_ = false;
  std::size_t batches_ = 0;
  std::size_t turns_wanted_ = 0;
  std::size_t batches_when_synced_ = 0;
};

class FileEndpointSourceTest : public testing::Test {
 protected:
  FileEndpointSourceTest() {
    std::string name = (fs::temp_directory_path() / "endpoints-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    options_.path = (directory_ / "endpoints.yaml").string();
    options_.health_interval = std::chrono::milliseconds(5);
    options_.health_timeout = std::chrono::seconds(30);
  }
  ~FileEndpointSourceTest() override {
    source_.reset();
    fs::remove_all(directory_);
  }

  static std::string line(const std::string& name, const std::string& port, const std::string& more = {}) {
    return "  - {name: " + name + ", address: 127.0.0.1, port: " + port + more + "}\n";
  }
  // As an editor or a config map does it.
  void replace(const std::string& endpoints) {
    const fs::path next = directory_ / "next";
    std::ofstream(next) << "endpoints:\n" << endpoints;
    fs::rename(next, options_.path);
  }
  void start(const std::string& endpoints) {
    replace(endpoints);
    source_ = make_file_endpoint_source(options_, error_);
    ASSERT_TRUE(source_) << error_;
    source_->start(recorder_);
  }

  fs::path directory_;
  FileDiscoveryOptions options_;
  std::string error_;
  HealthServer engine_;
  Recorder recorder_;
  std::unique_ptr<EndpointSource> source_;
};

TEST_F(FileEndpointSourceTest, TellsEndpointsThatAnswerAsReady) {
  start(line("a", engine_.port(), ", labels: {zone: x}, health_path: /ready"));
  EXPECT_TRUE(recorder_.wait([](const auto& known, bool synced) { return synced && known.contains("a"); }));
  EXPECT_TRUE(recorder_.is_ready("a"));
  EXPECT_EQ(recorder_.get("a").not_ready_reason, "");
  EXPECT_EQ(recorder_.get("a").labels.at("zone"), "x");
  EXPECT_EQ(engine_.last_target(), "/ready");
}

TEST_F(FileEndpointSourceTest, FollowsTheHealth) {
  start(line("a", engine_.port()));
  EXPECT_TRUE(recorder_.is_ready("a"));
  engine_.answer(503);
  EXPECT_TRUE(recorder_.is_ready("a", false));
  EXPECT_EQ(recorder_.get("a").not_ready_reason, "status 503");
  engine_.answer(200);
  EXPECT_TRUE(recorder_.is_ready("a"));
  engine_.answer(0);
  EXPECT_TRUE(recorder_.is_ready("a", false));
  EXPECT_NE(recorder_.get("a").not_ready_reason.find("receive"), std::string::npos);
}

TEST_F(FileEndpointSourceTest, SaysWhyAnUnreachableOneIsNotReady) {
  start(line("a", "1"));
  EXPECT_TRUE(recorder_.wait([](const auto& known, bool) {
    const auto found = known.find("a");
    return found != known.end() && found->second.not_ready_reason.starts_with("connect: ");
  }));
}

TEST_F(FileEndpointSourceTest, PicksUpAnAtomicReplace) {
  start(line("a", engine_.port()));
  EXPECT_TRUE(recorder_.is_ready("a"));
  HealthServer other;
  replace(line("b", other.port()));
  EXPECT_TRUE(recorder_.is_ready("b"));
  EXPECT_TRUE(recorder_.wait([](const auto& known, bool) { return known.size() == 1; }));
  replace("");  // `endpoints:` without a list is a mistake
  replace(line("b", other.port(), ", labels: {x: y}"));
  EXPECT_TRUE(recorder_.wait(
      [](const auto& known, bool) { return known.contains("b") && !known.at("b").labels.empty(); }));
  EXPECT_TRUE(recorder_.get("b").ready) << "a label is no reason to probe anew";
}

TEST_F(FileEndpointSourceTest, PicksUpALinkThatIsSwapped) {
  fs::create_directory(directory_ / "one");
  fs::create_directory(directory_ / "two");
  std::ofstream(directory_ / "one/endpoints.yaml") << "endpoints:\n" << line("a", engine_.port());
  std::ofstream(directory_ / "two/endpoints.yaml") << "endpoints:\n" << line("b", engine_.port());
  fs::create_symlink("one", directory_ / "..data");
  fs::create_symlink("..data/endpoints.yaml", options_.path);
  source_ = make_file_endpoint_source(options_, error_);
  ASSERT_TRUE(source_) << error_;
  source_->start(recorder_);
  EXPECT_TRUE(recorder_.is_ready("a"));
  fs::create_symlink("two", directory_ / "..data_tmp");
  fs::rename(directory_ / "..data_tmp", directory_ / "..data");
  EXPECT_TRUE(recorder_.is_ready("b"));
}

TEST_F(FileEndpointSourceTest, KeepsTheSetWhenTheFileGoesBadOrAway) {
  start(line("a", engine_.port()));
  EXPECT_TRUE(recorder_.is_ready("a"));
  std::ofstream(options_.path) << "endpoints: [{nome: x}]";
  fs::remove(options_.path);
  ASSERT_EQ(::mkfifo(options_.path.c_str(), 0600), 0);
  // What comes after shows that the bad ones were passed by.
  replace(line("a", engine_.port()) + line("b", engine_.port() == "1" ? "2" : "1"));
  EXPECT_TRUE(recorder_.wait([](const auto& known, bool) { return known.contains("b"); }));
  EXPECT_TRUE(recorder_.get("a").ready);
}

TEST_F(FileEndpointSourceTest, ANewPlaceHasToProveItself) {
  start(line("a", engine_.port()));
  EXPECT_TRUE(recorder_.is_ready("a"));
  replace(line("a", "1"));
  EXPECT_TRUE(recorder_.is_ready("a", false));
  EXPECT_EQ(recorder_.get("a").port, 1);
}

TEST_F(FileEndpointSourceTest, TellsAFileAsOneBatch) {
  std::string lines;
  for (int i = 1; i <= 50; ++i) lines += line("e" + std::to_string(i), std::to_string(i));
  start(lines);
  EXPECT_TRUE(recorder_.wait([](const auto& known, bool synced) { return synced && known.size() == 50; }));
  EXPECT_EQ(recorder_.batches_when_synced(), 1U);
}

// The listener has more to do than can be done at once: probes go on, and it is synced when it is done.
TEST_F(FileEndpointSourceTest, GivesTheListenerTurns) {
  recorder_.want_turns(1000);
  start(line("a", engine_.port()));
  EXPECT_TRUE(recorder_.wait([](const auto&, bool synced) { return synced; }));
  EXPECT_EQ(recorder_.batches_when_synced(), 1001U);
}

TEST(FirstPause, SpreadsEndpointsOverHalfAnInterval) {
  using std::chrono::milliseconds;
  EXPECT_EQ(first_pause(0, milliseconds(1000)), milliseconds(500));
  EXPECT_EQ(first_pause(512, milliseconds(1000)), milliseconds(750));
  EXPECT_EQ(first_pause(1023, milliseconds(1000)), milliseconds(999));
  EXPECT_EQ(first_pause(~std::uint64_t{0}, milliseconds(1000)), milliseconds(999));
}

TEST_F(FileEndpointSourceTest, ResolvesNames) {
  start("  - {name: a, address: localhost, port: " + engine_.port() + "}\n");
  EXPECT_TRUE(recorder_.wait([](const auto& known, bool synced) { return synced && known.contains("a"); }));
  const std::string address = recorder_.get("a").address;
  EXPECT_TRUE(address == "127.0.0.1" || address == "::1") << address;
}

TEST_F(FileEndpointSourceTest, NeedsARoleInDisaggregatedModeOnly) {
  options_.disaggregated = true;
  HealthServer second;
  start(line("a", engine_.port()) + line("b", second.port(), ", role: decode"));
  EXPECT_TRUE(recorder_.is_ready("b"));
  EXPECT_EQ(recorder_.get("b").role, EndpointRole::kDecode);
  EXPECT_FALSE(recorder_.get("a").ready);
  EXPECT_NE(recorder_.get("a").not_ready_reason.find("no role"), std::string::npos);

  Recorder aggregated;
  options_.disaggregated = false;
  const auto source = make_file_endpoint_source(options_, error_);
  source->start(aggregated);
  EXPECT_TRUE(aggregated.is_ready("b"));
  EXPECT_FALSE(aggregated.get("b").role);
  EXPECT_TRUE(aggregated.is_ready("a"));
  source->stop();
}

TEST_F(FileEndpointSourceTest, DoesNotStartWithAMissingOrWrongFile) {
  EXPECT_EQ(make_file_endpoint_source(options_, error_), nullptr);
  EXPECT_NE(error_.find("endpoints.yaml: can't be opened"), std::string::npos) << error_;
  std::ofstream(options_.path) << "endpoints: [{nome: x}]";
  EXPECT_EQ(make_file_endpoint_source(options_, error_), nullptr);
  EXPECT_NE(error_.find("unknown key 'nome'"), std::string::npos) << error_;
  options_.path = directory_.string();
  EXPECT_EQ(make_file_endpoint_source(options_, error_), nullptr);
  options_.path = (directory_ / "fifo").string();
  ASSERT_EQ(::mkfifo(options_.path.c_str(), 0600), 0);
  EXPECT_EQ(make_file_endpoint_source(options_, error_), nullptr);
  EXPECT_NE(error_.find("fifo: is not a regular file"), std::string::npos) << error_;
}

TEST_F(FileEndpointSourceTest, IsSilentAfterStop) {
  start(line("a", engine_.port()));
  EXPECT_TRUE(recorder_.is_ready("a"));
  source_->stop();
  replace("  []\n");
  EXPECT_EQ(recorder_.count(), 1U);
  source_->stop();
}

}  // namespace
}  // namespace handoff::epp
