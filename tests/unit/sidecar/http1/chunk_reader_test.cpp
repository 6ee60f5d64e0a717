#include "sidecar/http1/chunk_reader.hpp"

#include <gtest/gtest.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <random>
#include <string>

namespace handoff::sidecar::http1 {
namespace {

using Status = ChunkReader::Status;

struct Outcome {
  Status status = Status::need_more;
  std::string content;
  std::string rest;  // not consumed
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << static_cast<int>(outcome.status) << " '" << outcome.content << "' rest '" << outcome.rest
             << "'";
}

/// Feeds `wire` in slices that end at `cuts`, as reads from a socket would bring it.
Outcome read_cut(std::string_view wire, const std::vector<std::size_t>& cuts) {
  ChunkReader reader;
  Outcome outcome;
  std::string buffer;
  std::size_t from = 0;
  for (std::size_t i = 0; i <= cuts.size(); ++i) {
    const auto to = i == cuts.size() ? wire.size() : cuts[i];
    buffer.append(wire.substr(from, to - from));
    from = to;
    std::vector<std::string_view> pieces;
    const auto result = reader.read(buffer, pieces);
    for (const auto piece : pieces) outcome.content += piece;
    if (result.verbatim) {  // framed again, it must be what it was
      std::vector<std::string_view> again;
      std::string content;
      ChunkReader other;
      const auto repeated = other.read(std::string_view(buffer).substr(0, result.consumed), again);
      EXPECT_EQ(repeated.consumed, result.consumed);
      EXPECT_EQ(again.size(), pieces.size());
    }
    buffer.erase(0, result.consumed);
    outcome.status = result.status;
    if (result.status != Status::need_more) {
      buffer.append(wire.substr(from));
      break;
    }
  }
  outcome.rest = buffer;
  return outcome;
}

Outcome read_at_once(std::string_view wire) {
  return read_cut(wire, {});
}

TEST(ChunkReader, ReadsChunks) {
  const struct {
    const char* why;
    std::string wire;
    Outcome outcome;
  } rows[] = {
      {"none", "0\r\n\r\n", {Status::complete, "", ""}},
      {"one", "5\r\nhello\r\n0\r\n\r\n", {Status::complete, "hello", ""}},
      {"several, and what follows",
       "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\nGET",
       {Status::complete, "hello", "GET"}},
      {"sizes in both cases",
       "a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n",
       {Status::complete, "01234567890123456789", ""}},
      {"leading zeros", "0003\r\nabc\r\n000\r\n\r\n", {Status::complete, "abc", ""}},
      {"extensions", "3;a=b\r\nabc\r\n0;c=\"d e\"\r\n\r\n", {Status::complete, "abc", ""}},
      {"blanks before an extension", "3 \t;a\r\nabc\r\n0\r\n\r\n", {Status::complete, "abc", ""}},
      {"trailers", "3\r\nabc\r\n0\r\nA: b\r\nC:\r\n\r\n", {Status::complete, "abc", ""}},
      {"content that looks like framing",
       "7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n",
       {Status::complete, "\r\n0\r\n\r\n", ""}},
      {"the end of a chunk is taken", "3\r\nabc\r\n", {Status::need_more, "abc", ""}},
      {"half of that end is not", "3\r\nabc\r", {Status::need_more, "abc", "\r"}},
      {"a size that may go on", "3", {Status::need_more, "", "3"}},
      {"a last chunk that may have trailers", "0\r\n", {Status::need_more, "", ""}},
      {"part of the data", "5\r\nab", {Status::need_more, "ab", ""}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    EXPECT_EQ(read_at_once(row.wire), row.outcome);
  }
}

TEST(ChunkReader, RefusesWhatTwoReadersMightReadDifferently) {
  for (const std::string wire : {"\r\n",
                                 ";a\r\n",
                                 "-1\r\n",
                                 "+3\r\n",
                                 " 3\r\n",
                                 "0x3\r\n",
                                 "3g\r\n",
                                 "3.0\r\n",
                                 "1 2\r\n",
                                 "fffffffffffffffff\r\n",
                                 "3\nabc",
                                 "3\r\nabc\n",
                                 "3\r\nabcd",
                                 "3\r\nabc\rx",
                                 "3;a\nabc",
                                 "3;a\rb\r\n",
                                 "0\r\n\n",
                                 "0\r\nA: b\n\n",
                                 "0\r\nno colon\r\n\r\n",
                                 "0\r\n: x\r\n\r\n",
                                 "0\r\nA b: x\r\n\r\n",
                                 "0\r\n folded\r\n\r\n",
                                 "3 x\r\nabc\r\n"}) {
    EXPECT_EQ(read_at_once(wire).status, Status::malformed) << wire;
  }
  using namespace std::string_literals;
  EXPECT_EQ(read_at_once("3\0\r\n"s).status, Status::malformed);
  EXPECT_EQ(read_at_once("3;\x01\r\n"s).status, Status::malformed);
}

// A line that can't become right is refused before its end comes, if it ever does.
TEST(ChunkReader, RefusesAtTheFirstWrongByte) {
  for (const std::string wire : {"x", "3\n", "3\r\nabcd", "0\r\n\n", "3;\x01", "0\r\nA\x02"}) {
    EXPECT_EQ(read_at_once(wire).status, Status::malformed) << wire;
  }
}

TEST(ChunkReader, BoundsTrailers) {
  std::string wire = "0\r\n";
  while (wire.size() < 80 * 1024) wire += "Name: value\r\n";
  EXPECT_EQ(read_at_once(wire).status, Status::malformed);
}

TEST(ChunkReader, BoundsALineHoweverItIsCut) {
  const std::string filler(20000, 'x');
  const std::vector<std::string> lines{"5;" + filler + "\r\n", "0\r\nA: " + filler + "\r\n"};
  for (const auto& line : lines) {
    EXPECT_EQ(read_at_once(line).status, Status::malformed);
    EXPECT_EQ(read_cut(line, {10000, 19000}).status, Status::malformed);
    EXPECT_EQ(read_cut(line, {10000, 15000}).status, Status::malformed);
  }
  const auto fits = "5;" + std::string(16000, 'x') + "\r\nhello\r\n0\r\n\r\n";
  EXPECT_EQ(read_at_once(fits).status, Status::complete);
  EXPECT_EQ(read_cut(fits, {10000, 15000}).status, Status::complete);
}

TEST(ChunkReader, KnowsWhatMayBePassedOnAsItIs) {
  const auto verbatim = [](std::string_view wire) {
    ChunkReader reader;
    std::vector<std::string_view> pieces;
    return reader.read(wire, pieces).verbatim;
  };
  EXPECT_TRUE(verbatim("3\r\nabc\r\n"));
  EXPECT_TRUE(verbatim("3\r\nabc\r\n1\r\nx\r\n5"));  // the begun line is left over
  EXPECT_FALSE(verbatim("3;a=b\r\nabc\r\n"));
  EXPECT_FALSE(verbatim("3\r\nabc\r"));
  EXPECT_FALSE(verbatim("3\r\nab"));
  EXPECT_FALSE(verbatim("3\r\nabc\r\n0\r\n\r\n"));
  EXPECT_FALSE(verbatim("3\r\nabc\r\n0\r\n"));
  EXPECT_FALSE(verbatim(""));
  ChunkReader reader;
  std::vector<std::string_view> pieces;
  EXPECT_FALSE(reader.read("3\r\na", pieces).verbatim);
  EXPECT_FALSE(reader.read("bc\r\n", pieces).verbatim);
  EXPECT_TRUE(reader.read("1\r\nd\r\n", pieces).verbatim);
}

struct Random {
  std::mt19937_64 engine;
  std::size_t below(std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(engine);
  }
};

std::string random_wire(Random& random) {
  static const std::vector<std::string> kPieces = {"0\r\n\r\n",
                                                   "1\r\na\r\n",
                                                   "3\r\nabc\r\n",
                                                   "3;x=y\r\nabc\r\n",
                                                   "0\r\nA: b\r\n\r\n",
                                                   "\r\n",
                                                   "\n",
                                                   "\r",
                                                   "5",
                                                   "a",
                                                   ";",
                                                   " ",
                                                   "A: b",
                                                   ":",
                                                   "0",
                                                   "10\r\n0123456789abcdef\r\n",
                                                   "\x01",
                                                   "4\r\nabc\r\n",
                                                   "2\r\nabc\r\n"};
  std::string wire;
  for (auto left = random.below(8); left > 0; --left) wire += kPieces[random.below(kPieces.size())];
  if (random.below(2) == 0) wire += "0\r\n\r\n";
  return wire;
}

TEST(ChunkReader, DoesNotDependOnHowTheBytesCome) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random{std::mt19937_64(seed)};
  for (int i = 0; i < 20000; ++i) {
    const auto wire = random_wire(random);
    const auto whole = read_at_once(wire);
    std::vector<std::size_t> cuts;
    for (std::size_t at = 0; at < wire.size(); ++at) {
      if (random.below(3) == 0) cuts.push_back(at);
    }
    const auto cut = read_cut(wire, cuts);
    ASSERT_EQ(cut.status, whole.status) << wire;
    ASSERT_EQ(cut.content, whole.content) << wire;
  }
}

// What we take for a complete body, Beast takes for the same one. It refuses extensions by a grammar of their
// own; we drop whatever stands there.
TEST(ChunkReader, AgreesWithBeast) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random{std::mt19937_64(seed)};
  int complete = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto wire = random_wire(random);
    const auto ours = read_at_once(wire);
    if (ours.status != Status::complete) continue;
    boost::beast::http::response_parser<boost::beast::http::string_body> beast;
    beast.eager(true);
    boost::system::error_code ec;
    const auto text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + wire;
    const auto consumed = beast.put(boost::asio::buffer(text), ec);
    if (ec == boost::beast::http::error::bad_chunk_extension) continue;
    ++complete;
    ASSERT_FALSE(ec) << ec.message() << " at " << wire;
    ASSERT_TRUE(beast.is_done()) << wire;
    ASSERT_EQ(text.substr(consumed), ours.rest) << wire;
    ASSERT_EQ(beast.get().body(), ours.content) << wire;
  }
  ASSERT_GT(complete, 1000);
}

}  // namespace
}  // namespace handoff::sidecar::http1
