#include "sidecar/upstream_pool.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/sidecar/loop_case.hpp"

namespace handoff::sidecar {
namespace {

class UpstreamPoolTest : public LoopCase {
 protected:
  /// A connection as a leg would give it back. Its other end is kept open.
  std::unique_ptr<UpstreamConnection> connection(const EngineAddress& to) {
    auto [near, far] = make_connection();
    far_ends.push_back(std::move(far));
    return std::make_unique<UpstreamConnection>(deadlines, std::move(near), to.authority);
  }

  const EngineAddress engine = make_engine_address("127.0.0.1", 1);
  const EngineAddress other = make_engine_address("127.0.0.1", 2);
  std::vector<Socket> far_ends;
};

TEST_F(UpstreamPoolTest, GivesTheLastUsedFirstAndOnlyItsOwnEngines) {
  auto first = connection(engine);
  auto second = connection(engine);
  auto* const last = second.get();
  auto* const before = first.get();
  pool.give_back(std::move(first));
  pool.give_back(std::move(second));
  pool.give_back(connection(other));
  EXPECT_EQ(pool.idle_count(), 3u);
  const auto taken = pool.take(engine);
  EXPECT_EQ(taken.get(), last);
  EXPECT_TRUE(taken->reused);
  const auto next = pool.take(engine);
  EXPECT_EQ(next.get(), before);
  EXPECT_EQ(pool.take(engine), nullptr);
  EXPECT_EQ(pool.idle_count(), 1u);
}

TEST_F(UpstreamPoolTest, KeepsNoMoreThanItsBound) {
  UpstreamPool small(deadlines, kPatience, 2);
  for (int i = 0; i < 4; ++i) small.give_back(connection(engine));
  EXPECT_EQ(small.idle_count(), 2u);
  UpstreamPool none(deadlines, kPatience, 0);
  none.give_back(connection(engine));
  EXPECT_EQ(none.take(engine), nullptr);
}

TEST_F(UpstreamPoolTest, DropsConnectionsThatTheEngineClosed) {
  pool.give_back(connection(engine));
  pool.give_back(connection(engine));
  far_ends[1].close();
  const auto taken = pool.take(engine);
  ASSERT_NE(taken, nullptr);  // the older one
  EXPECT_EQ(pool.idle_count(), 0u);
  EXPECT_EQ(pool.take(engine), nullptr);
}

// Else those bytes would be read as the answer to the next request.
TEST_F(UpstreamPoolTest, DropsConnectionsOnWhichTheEngineSaidMore) {
  pool.give_back(connection(engine));
  net::write(far_ends[0], net::buffer("HTTP/1.1 408 Request Timeout\r\n\r\n", 32));
  EXPECT_EQ(pool.take(engine), nullptr);
  EXPECT_EQ(pool.idle_count(), 0u);
}

// As a connection is after a reply: all was read, and nothing is known to be unread.
void read_all(UpstreamConnection& connection) {
  char byte = 0;
  EXPECT_EQ(connection.transport.try_read({&byte, 1}).status, IoStatus::would_block);
}

TEST_F(UpstreamPoolTest, ClosesAtOnceWhatTheEngineClosesOrTalksOn) {
  for (int i = 0; i < 3; ++i) {
    auto given = connection(engine);
    read_all(*given);
    pool.give_back(std::move(given));
  }
  far_ends[0].close();
  EXPECT_TRUE(run_until([&] { return pool.idle_count() == 2; }));
  net::write(far_ends[1], net::buffer("x", 1));
  EXPECT_TRUE(run_until([&] { return pool.idle_count() == 1; }));
  EXPECT_NE(pool.take(engine), nullptr);
}

// The loop was busy, and has not looked at its sockets since.
TEST_F(UpstreamPoolTest, GivesNothingThatWasClosedBehindTheLoopsBack) {
  auto given = connection(engine);
  read_all(*given);
  pool.give_back(std::move(given));
  far_ends[0].close();
  EXPECT_EQ(pool.take(engine), nullptr);
}

TEST_F(UpstreamPoolTest, ClosesWhatIsIdleForTooLong) {
  UpstreamPool impatient(deadlines, kShort, 8);
  impatient.give_back(connection(engine));
  impatient.give_back(connection(other));
  EXPECT_TRUE(run_until([&] { return impatient.idle_count() == 0; }));
  char byte = 0;
  error_code ec;
  far_ends[0].read_some(net::buffer(&byte, 1), ec);
  EXPECT_EQ(ec, net::error::eof);
  EXPECT_EQ(impatient.take(engine), nullptr);
}

TEST_F(UpstreamPoolTest, DoesNotCloseWhatIsInUseAgain) {
  UpstreamPool impatient(deadlines, kShort, 8);
  impatient.give_back(connection(engine));
  const auto taken = impatient.take(engine);
  ASSERT_NE(taken, nullptr);
  run_for(kShort * 2);
  EXPECT_TRUE(taken->transport.is_quiet());
}

TEST_F(UpstreamPoolTest, ClosesAllWhenTold) {
  pool.give_back(connection(engine));
  pool.give_back(connection(other));
  pool.close();
  EXPECT_EQ(pool.idle_count(), 0u);
  EXPECT_EQ(pool.take(engine), nullptr);
  pool.give_back(connection(engine));  // it would keep a loop from ending
  EXPECT_EQ(pool.idle_count(), 0u);
}

TEST(EngineAddress, IsWrittenAsInAHostHeader) {
  EXPECT_EQ(make_engine_address("10.0.0.1", 8000).authority, "10.0.0.1:8000");
  EXPECT_EQ(make_engine_address("decode.local", 80).authority, "decode.local:80");
  EXPECT_EQ(make_engine_address("fd00::1", 8000).authority, "[fd00::1]:8000");
}

}  // namespace
}  // namespace handoff::sidecar
