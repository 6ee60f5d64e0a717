#include "sidecar/transport.hpp"

#include <array>
#include <boost/asio/read.hpp>
#include <memory>
#include <string>

#include "tests/unit/sidecar/loop_case.hpp"

namespace handoff::sidecar {
namespace {

Awaitable<> wait_readable(Transport& transport, int& woken) {
  co_await transport.wait_readable();
  ++woken;
}

Awaitable<> wait_either(Transport& transport, int& woken) {
  co_await transport.wait_either();
  ++woken;
}

Awaitable<> wait_and_destroy(std::unique_ptr<Transport>& mine, std::unique_ptr<Transport>& other,
                             int& woken) {
  co_await mine->wait_readable();
  ++woken;
  mine.reset();
  other.reset();
}

Awaitable<> own_and_wait(Socket socket, int& resumed) {
  Transport transport(std::move(socket));
  std::array<char, 8> buffer;
  const auto got = transport.try_read(buffer);
  EXPECT_EQ(got.status, IoStatus::would_block);
  co_await transport.wait_readable();
  ++resumed;
}

class TransportTest : public LoopCase {
 protected:
  TransportTest() {
    auto [near, far] = make_connection();
    transport_ = std::make_unique<Transport>(std::move(near));
    far_ = std::make_unique<Socket>(std::move(far));
  }

  void send(std::string_view bytes) { net::write(*far_, net::buffer(bytes)); }
  IoStatus status() { return read().status; }
  IoResult read() { return transport_->try_read(buffer_); }
  /// Waits as whoever got would_block does. False: nobody was woken.
  bool is_woken(milliseconds limit = kPatience) {
    int woken = 0;
    bool ended = false;
    spawn(wait_readable(*transport_, woken), ended);
    const bool done = limit == kPatience ? run_until([&] { return ended; }) : (run_for(limit), ended);
    if (!done) {
      transport_->cancel_waits();
      run_until([&] { return ended; });
    }
    return done;
  }

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Socket> far_;
  std::array<char, 8> buffer_{};
};

TEST_F(TransportTest, ReadsWhatIsThereAndThenWaitsForMore) {
  send("abc");
  const auto got = read();
  EXPECT_EQ(got.status, IoStatus::ok);
  EXPECT_EQ(got.size, 3U);
  EXPECT_FALSE(transport_->may_be_readable());
  EXPECT_EQ(status(), IoStatus::would_block);
  EXPECT_FALSE(is_woken(kShort));
  send("d");
  EXPECT_TRUE(is_woken());
  EXPECT_EQ(read().size, 1U);
}

TEST_F(TransportTest, GoesOnReadingWhereTheBufferWasTooSmall) {
  send("0123456789");
  EXPECT_EQ(read().size, buffer_.size());
  EXPECT_EQ(read().size, 2U);
  EXPECT_EQ(status(), IoStatus::would_block);
}

TEST_F(TransportTest, SeesTheEndThatCameWithTheLastBytes) {
  EXPECT_EQ(status(), IoStatus::would_block);
  send("abc");
  far_->close();
  EXPECT_TRUE(is_woken());
  EXPECT_EQ(read().size, 3U);
  EXPECT_EQ(status(), IoStatus::closed);
}

TEST_F(TransportTest, SeesTheEndThatCameAfterwards) {
  send("abc");
  EXPECT_EQ(read().size, 3U);
  far_->close();
  EXPECT_TRUE(is_woken());
  EXPECT_EQ(status(), IoStatus::closed);
}

TEST_F(TransportTest, SeesAReset) {
  EXPECT_EQ(status(), IoStatus::would_block);
  far_->set_option(net::socket_base::linger(true, 0));
  far_->close();
  EXPECT_TRUE(is_woken());
  EXPECT_EQ(status(), IoStatus::failed);
}

TEST_F(TransportTest, QuietMeansOpenAndNothingUnread) {
  EXPECT_TRUE(transport_->is_quiet());
  EXPECT_TRUE(transport_->seems_quiet());
  send("a");
  EXPECT_FALSE(transport_->is_quiet());
  EXPECT_EQ(read().size, 1U);
  EXPECT_TRUE(transport_->seems_quiet());
  far_->close();
  EXPECT_TRUE(is_woken());
  EXPECT_FALSE(transport_->seems_quiet());
}

Awaitable<> tell_anew_when_readable(Socket& socket, Transport& transport, bool& done) {
  co_await socket.async_wait(net::socket_base::wait_read, kUseAwaitable);
  transport.stop_telling();
  transport.tell_when_readable();
  done = true;
}

// The loop learns of both sockets at once; the first one's handler ends the wait that is already over.
TEST_F(TransportTest, AWaitThatBeginsWhileTheLastOnesEndIsUnderWayLeavesNothingBehind) {
  auto [near, far] = make_connection();
  EXPECT_EQ(status(), IoStatus::would_block);
  int told = 0;
  transport_->on_readable([&] { ++told; });
  transport_->tell_when_readable();
  bool done = false;
  bool ended = false;
  spawn(tell_anew_when_readable(near, *transport_, done), ended);
  context.poll();
  net::write(far, net::buffer("x", 1));
  send("x");
  EXPECT_TRUE(run_until([&] { return ended && told == 1; }));
  transport_.reset();
  context.restart();
  context.poll();
  EXPECT_TRUE(context.stopped()) << "somebody still waits";
}

TEST_F(TransportTest, AFullSocketIsWritableAgainAfterItsReaderHasRead) {
  const std::string block(1 << 20, 'x');
  std::size_t sent = 0;
  auto written = transport_->try_write(block.data(), block.size());
  while (written.status == IoStatus::ok) {
    sent += written.size;
    written = transport_->try_write(block.data(), block.size());
  }
  EXPECT_EQ(written.status, IoStatus::would_block);
  EXPECT_EQ(status(), IoStatus::would_block);
  int woken = 0;
  bool ended = false;
  spawn(wait_either(*transport_, woken), ended);
  run_for(kShort);
  EXPECT_FALSE(ended);
  std::string received(sent, '\0');
  net::read(*far_, net::buffer(received));
  EXPECT_TRUE(run_until([&] { return ended; }));
  EXPECT_EQ(transport_->try_write("y", 1).status, IoStatus::ok);
}

TEST_F(TransportTest, EitherIsAlsoReadable) {
  const std::string block(1 << 20, 'x');
  while (transport_->try_write(block.data(), block.size()).status == IoStatus::ok) {
  }
  EXPECT_EQ(status(), IoStatus::would_block);
  int woken = 0;
  bool ended = false;
  spawn(wait_either(*transport_, woken), ended);
  send("no more");
  EXPECT_TRUE(run_until([&] { return ended; }));
  EXPECT_EQ(read().size, 7U);
}

TEST_F(TransportTest, CancellingResumesTheWaiterFromTheLoop) {
  EXPECT_EQ(status(), IoStatus::would_block);
  int woken = 0;
  bool ended = false;
  spawn(wait_readable(*transport_, woken), ended);
  run_for(kShort);
  transport_->cancel_waits();
  EXPECT_EQ(woken, 0);
  EXPECT_TRUE(run_until([&] { return ended; }));
  send("a");
  EXPECT_TRUE(is_woken());
}

TEST_F(TransportTest, TellsOncePerRequestBesideAWaiter) {
  EXPECT_EQ(status(), IoStatus::would_block);
  int told = 0;
  transport_->on_readable([&] { ++told; });
  transport_->tell_when_readable();
  transport_->tell_when_readable();
  send("a");
  EXPECT_TRUE(is_woken());
  EXPECT_EQ(told, 1);
  EXPECT_EQ(read().size, 1U);
  send("b");
  EXPECT_TRUE(is_woken());
  EXPECT_EQ(told, 1);
}

TEST_F(TransportTest, ASocketMayGoWhileItsOwnChangeIsTold) {
  auto [near, far] = make_connection();
  auto other = std::make_unique<Transport>(std::move(near));
  EXPECT_EQ(status(), IoStatus::would_block);
  EXPECT_EQ(other->try_read(buffer_).status, IoStatus::would_block);
  int woken = 0;
  bool first_ended = false;
  spawn(wait_and_destroy(transport_, other, woken), first_ended);
  run_for(kShort);
  send("a");
  net::write(far, net::buffer("b", 1));  // in the same batch; nobody is left to be told
  EXPECT_TRUE(run_until([&] { return first_ended; }));
  EXPECT_EQ(woken, 1);
  run_for(kShort);
}

TEST_F(TransportTest, ClosingResumesTheWaiter) {
  EXPECT_EQ(status(), IoStatus::would_block);
  int woken = 0;
  bool ended = false;
  spawn(wait_readable(*transport_, woken), ended);
  run_for(kShort);
  transport_->close();
  EXPECT_TRUE(run_until([&] { return ended; }));
  EXPECT_FALSE(transport_->is_open());
  EXPECT_EQ(status(), IoStatus::failed);
}

// Under the address sanitizer this would be a leak: the coroutine owns the transport, which holds the
// coroutine.
TEST(Transport, AContextThatGoesTakesWaitersAlong) {
  int resumed = 0;
  {
    net::io_context context;
    net::basic_socket_acceptor<tcp, Executor> acceptor(context, {net::ip::address_v4::loopback(), 0});
    Socket near(context), far(context);
    near.connect(acceptor.local_endpoint());
    acceptor.accept(far);
    net::co_spawn(context, own_and_wait(std::move(near), resumed), [](std::exception_ptr) {});
    context.run_for(kShort);
  }
  EXPECT_EQ(resumed, 0);
}

// A loop that nobody waits on must be able to end.
TEST(Transport, AnIdleSocketDoesNotKeepTheLoopRunning) {
  net::io_context context;
  net::basic_socket_acceptor<tcp, Executor> acceptor(context, {net::ip::address_v4::loopback(), 0});
  Socket near(context), far(context);
  near.connect(acceptor.local_endpoint());
  acceptor.accept(far);
  Transport transport(std::move(near));
  EXPECT_TRUE(transport.is_quiet());
  transport.on_readable([] {});
  transport.tell_when_readable();
  context.run_for(kShort);
  EXPECT_FALSE(context.stopped());
  transport.close();
  context.run_for(kPatience);
  EXPECT_TRUE(context.stopped());
}

}  // namespace
}  // namespace handoff::sidecar
