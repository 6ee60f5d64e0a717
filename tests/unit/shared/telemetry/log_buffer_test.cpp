#include "shared/telemetry/log_buffer.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/unit/shared/telemetry/test_pipe.hpp"

namespace handoff::telemetry {
namespace {

std::string note(std::uint64_t count) {
  return "dropped=" + std::to_string(count) + "\n";
}

const std::string kLine = std::string(999, 'x') + "\n";

TEST(LogBuffer, WritesOnFlushOnly) {
  TestPipe pipe;
  LogBuffer buffer(pipe.writer());
  buffer.append("one\n", note);
  EXPECT_EQ(pipe.take(), "");
  buffer.flush();
  EXPECT_EQ(pipe.take(), "one\n");
  EXPECT_EQ(buffer.size(), 0U);
}

TEST(LogBuffer, WantsAFlushPerSixteenKilobytes) {
  TestPipe pipe;
  LogBuffer buffer(pipe.writer());
  for (int i = 0; i < 16; ++i) buffer.append(kLine, note);
  EXPECT_FALSE(buffer.wants_flush());
  buffer.append(kLine, note);
  EXPECT_TRUE(buffer.wants_flush());
  buffer.flush();
  EXPECT_FALSE(buffer.wants_flush());
}

TEST(LogBuffer, PiecesEndWithWholeLines) {
  TestPipe pipe(4096);
  LogBuffer buffer(pipe.writer());
  for (int i = 0; i < 10; ++i) buffer.append(kLine, note);
  buffer.flush();
  EXPECT_EQ(pipe.take().size(), 4000U);
  buffer.flush();
  EXPECT_EQ(pipe.take().size(), 4000U);
  buffer.flush();
  EXPECT_EQ(pipe.take().size(), 2000U);
}

TEST(LogBuffer, AFullPipeDropsCountsAndTellsLater) {
  TestPipe pipe(4096);
  LogBuffer buffer(pipe.writer());
  const std::size_t sent = 2 * LogBuffer::kMaxBytes / kLine.size();
  for (std::size_t i = 0; i < sent; ++i) {
    buffer.append(kLine, note);
    if (buffer.wants_flush()) buffer.flush();
    ASSERT_LE(buffer.size(), LogBuffer::kMaxBytes);
  }
  std::string text;
  while (buffer.size() != 0) {
    buffer.flush();
    text += pipe.take();
  }
  const std::size_t kept = text.size() / kLine.size();
  EXPECT_LT(kept, sent);
  buffer.append("after\n", note);
  buffer.flush();
  EXPECT_EQ(pipe.take(), note(sent - kept) + "after\n");
  buffer.append("again\n", note);
  buffer.flush();
  EXPECT_EQ(pipe.take(), "again\n");
}

TEST(LogBuffer, AReaderThatIsGoneCostsNothing) {
  TestPipe pipe;
  LogBuffer buffer(pipe.writer());
  pipe.close_reader();
  for (int i = 0; i < 100; ++i) {
    buffer.append(kLine, note);
    buffer.flush();
    ASSERT_EQ(buffer.size(), 0U);
  }
}

TEST(LogBuffer, AClosedDescriptorCostsNothing) {
  LogBuffer buffer(-1);
  buffer.append(kLine, note);
  buffer.flush();
  SUCCEED();
}

// journald hands out sockets: they may poll as writable with less room than a piece.
TEST(LogBuffer, AFullSocketIsNotWaitedFor) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  LogBuffer buffer(ends[0]);
  for (int i = 0; i < 3000; ++i) {
    buffer.append(kLine, note);
    if (buffer.wants_flush()) buffer.flush();
  }
  EXPECT_GT(buffer.size(), 0U);
  ::close(ends[1]);
  buffer.flush();
  EXPECT_EQ(buffer.size(), 0U);
  ::close(ends[0]);
}

}  // namespace
}  // namespace handoff::telemetry
