#include "shared/telemetry/log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <thread>
#include <vector>

#include "tests/unit/shared/telemetry/test_pipe.hpp"

namespace handoff::telemetry {
namespace {

constexpr int kMustNotExpireMs = 10'000;

class Log : public ::testing::Test {
 protected:
  ~Log() override { init_logging(Level::off); }

  /// The lines of the pipe without their time stamps.
  std::string lines() {
    flush_logging();
    static const std::regex kTimeStamp(R"((^|\n)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z )");
    return std::regex_replace(pipe.take(), kTimeStamp, "$1");
  }

  TestPipe pipe;
};

TEST_F(Log, IsSilentBeforeItStarts) {
  EXPECT_FALSE(log_enabled(Level::error));
  LogLine(Level::error, "event").field("a", 1);
}

TEST_F(Log, WritesOneLinePerEvent) {
  init_logging(Level::info, pipe.writer());
  LogLine(Level::info, "request_done")
      .field("request_id", std::string("r-1"))
      .field("path", "/v1/chat completions")
      .field("bytes", 123U)
      .field("delta", -5)
      .field("large", UINT64_MAX)
      .field("streamed", true)
      .field("ms", 1.5);
  LogLine(Level::info, "bare");
  EXPECT_EQ(lines(),
            "INFO request_done request_id=r-1 path=\"/v1/chat completions\" bytes=123 delta=-5 "
            "large=18446744073709551615 streamed=true ms=1.500\nINFO bare\n");
}

TEST_F(Log, TimeStampsAreUtcNow) {
  init_logging(Level::info, pipe.writer());
  const auto before = std::time(nullptr);
  LogLine(Level::info, "event");
  flush_logging();
  std::tm parts{};
  const std::string text = pipe.take();
  ASSERT_NE(::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts), nullptr) << text;
  const auto stamped = ::timegm(&parts);
  EXPECT_GE(stamped, before);
  EXPECT_LE(stamped, std::time(nullptr));
}

TEST_F(Log, FiltersByLevel) {
  init_logging(Level::warn, pipe.writer());
  EXPECT_FALSE(log_enabled(Level::info));
  EXPECT_TRUE(log_enabled(Level::warn));
  EXPECT_FALSE(log_enabled(Level::off));
  LogLine(Level::trace, "a");
  LogLine(Level::info, "b");
  LogLine(Level::warn, "c");
  LogLine(Level::error, "d");
  LogLine(Level::off, "e");
  EXPECT_EQ(lines(), "WARN c\nERROR d\n");
  init_logging(Level::off, pipe.writer());
  LogLine(Level::error, "f");
  EXPECT_EQ(lines(), "");
}

TEST_F(Log, AHostileValueCanNotForgeALine) {
  init_logging(Level::info, pipe.writer());
  LogLine(Level::info, "event")
      .field("id", "x\n2026-01-02T03:04:05.678Z ERROR forged a=1")
      .field("b", "\" c=\"");
  const std::string text = lines();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text, "INFO event id=\"x\\n2026-01-02T03:04:05.678Z ERROR forged a=1\" b=\"\\\" c=\\\"\"\n");
}

TEST_F(Log, ALineStaysBelowOnePiece) {
  init_logging(Level::info, pipe.writer());
  {
    LogLine line(Level::info, "event");
    for (int i = 0; i < 100; ++i) line.field("value", std::string(1000, '\x01'));
  }
  const std::string text = lines();
  EXPECT_GT(text.size(), 2000U);
  EXPECT_LT(text.size(), 4050U);
}

TEST_F(Log, WarningsAreWrittenAtOnce) {
  init_logging(Level::info, pipe.writer());
  LogLine(Level::info, "waits");
  LogLine(Level::warn, "now");
  EXPECT_NE(pipe.take().find("now"), std::string::npos);
}

TEST_F(Log, OtherLinesAreWrittenInTheBackground) {
  init_logging(Level::info, pipe.writer());
  LogLine(Level::info, "event");
  EXPECT_NE(pipe.take(kMustNotExpireMs).find("event"), std::string::npos);
}

// A field's value may be made by a function that logs.
TEST_F(Log, LinesMayNest) {
  init_logging(Level::info, pipe.writer());
  const auto inner = [] {
    LogLine(Level::info, "inner").field("a", 1);
    return 2;
  };
  LogLine(Level::info, "outer").field("b", inner()).field("c", inner());
  EXPECT_EQ(lines(), "INFO inner a=1\nINFO inner a=1\nINFO outer b=2 c=2\n");
}

TEST_F(Log, ThreadsDoNotMixLines) {
  init_logging(Level::info, pipe.writer());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) LogLine(Level::info, "event").field("thread", t).field("i", i);
    });
  }
  for (auto& thread : threads) thread.join();
  const std::string text = lines();
  static const std::regex kEvent(R"(INFO event thread=\d i=\d+\n)");
  EXPECT_EQ(std::regex_replace(text, kEvent, ""), "");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 800);
}

TEST_F(Log, AStalledReaderIsNeverWaitedFor) {
  init_logging(Level::info, pipe.writer());
  const std::string value(200, 'v');
  for (int i = 0; i < 10'000; ++i) LogLine(Level::warn, "event").field("value", value);
  std::string text;
  while (true) {
    flush_logging();
    const std::string piece = pipe.take();
    if (piece.empty()) break;
    text += piece;
  }
  const auto kept = std::count(text.begin(), text.end(), '\n');
  EXPECT_LT(kept, 10'000);
  LogLine(Level::info, "after");
  EXPECT_EQ(lines(), "WARN log_lines_dropped count=" + std::to_string(10'000 - kept) + "\nINFO after\n");
}

}  // namespace
}  // namespace handoff::telemetry
