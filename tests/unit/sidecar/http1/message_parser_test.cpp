#include "sidecar/http1/message_parser.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace handoff::sidecar::http1 {
namespace {

/// What a parser made of some bytes.
struct Parsed {
  HeadStatus head = HeadStatus::need_more;
  BodyStatus body = BodyStatus::need_more;
  std::string content;
  std::string rest;  // not taken
  bool keep_alive = false;
};

template <class Parser, class Head>
Parsed parse_in(std::string_view bytes, std::size_t split, Parser parser, Head& head,
                const HeadLimits& limits) {
  Parsed out;
  std::string inbox(bytes.substr(0, split));
  std::string later(bytes.substr(split));
  std::vector<std::string_view> pieces;
  while (true) {
    if (out.head == HeadStatus::need_more) {
      const auto result = parser.parse_head(inbox, limits, head);
      out.head = result.status;
      if (result.status == HeadStatus::complete) {
        inbox.erase(0, result.consumed);
        out.keep_alive = head.keep_alive;
      } else if (result.status != HeadStatus::need_more) {
        return out;
      }
    }
    if (out.head == HeadStatus::complete && out.body == BodyStatus::need_more) {
      pieces.clear();
      const auto result = parser.parse_body(inbox, pieces);
      for (const auto piece : pieces) out.content += piece;
      inbox.erase(0, result.consumed);
      out.body = result.status;
      if (result.status == BodyStatus::malformed) return out;
    }
    if (later.empty()) break;
    inbox += later;
    later.clear();
  }
  out.rest = inbox;
  return out;
}

/// The result, which must be the same wherever the bytes are cut in two.
Parsed parse_request(std::string_view bytes, const HeadLimits& limits = {}) {
  RequestHead head;
  const auto whole = parse_in(bytes, bytes.size(), RequestParser(), head, limits);
  for (std::size_t split = 0; split < bytes.size(); ++split) {
    RequestHead other;
    const auto cut = parse_in(bytes, split, RequestParser(), other, limits);
    EXPECT_EQ(cut.head, whole.head) << "cut at " << split;
    EXPECT_EQ(cut.body, whole.body) << "cut at " << split;
    EXPECT_EQ(cut.content, whole.content) << "cut at " << split;
    if (whole.body == BodyStatus::complete) {
      EXPECT_EQ(cut.rest, whole.rest) << "cut at " << split;
    }
  }
  return whole;
}

Parsed parse_response(std::string_view bytes, bool to_head_request = false) {
  ResponseHead head;
  const auto whole = parse_in(bytes, bytes.size(), ResponseParser(to_head_request), head, {});
  for (std::size_t split = 0; split < bytes.size(); ++split) {
    ResponseHead other;
    const auto cut = parse_in(bytes, split, ResponseParser(to_head_request), other, {});
    EXPECT_EQ(cut.head, whole.head) << "cut at " << split;
    EXPECT_EQ(cut.body, whole.body) << "cut at " << split;
    EXPECT_EQ(cut.content, whole.content) << "cut at " << split;
  }
  return whole;
}

struct HeadRow {
  const char* why;
  std::string bytes;
  HeadStatus status;
};

TEST(RequestParser, TakesOrRefusesHeads) {
  const std::string ok = "Host: a\r\n";
  const HeadRow rows[] = {
      {"a plain GET", "GET / HTTP/1.1\r\n" + ok + "\r\n", HeadStatus::complete},
      {"HTTP/1.0 needs no Host", "GET / HTTP/1.0\r\n\r\n", HeadStatus::complete},
      {"empty lines before a request are ignored", "\r\n\r\nGET / HTTP/1.1\r\n" + ok + "\r\n",
       HeadStatus::complete},
      {"spaces around a value are not part of it", "GET / HTTP/1.1\r\nHost:  a \r\n\r\n",
       HeadStatus::complete},
      {"HTTP/1.1 must name its host", "GET / HTTP/1.1\r\n\r\n", HeadStatus::malformed},
      {"two hosts", "GET / HTTP/1.1\r\n" + ok + ok + "\r\n", HeadStatus::malformed},
      {"two lengths that agree",
       "POST / HTTP/1.1\r\n" + ok + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", HeadStatus::malformed},
      {"two lengths that differ",
       "POST / HTTP/1.1\r\n" + ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", HeadStatus::malformed},
      {"a list of lengths", "POST / HTTP/1.1\r\n" + ok + "Content-Length: 1, 1\r\n\r\n",
       HeadStatus::malformed},
      {"a signed length", "POST / HTTP/1.1\r\n" + ok + "Content-Length: +1\r\n\r\n", HeadStatus::malformed},
      {"a negative length", "POST / HTTP/1.1\r\n" + ok + "Content-Length: -1\r\n\r\n", HeadStatus::malformed},
      {"a length with a fraction", "POST / HTTP/1.1\r\n" + ok + "Content-Length: 1.0\r\n\r\n",
       HeadStatus::malformed},
      {"an empty length", "POST / HTTP/1.1\r\n" + ok + "Content-Length: \r\n\r\n", HeadStatus::malformed},
      {"a length beyond 64 bits", "POST / HTTP/1.1\r\n" + ok + "Content-Length: 99999999999999999999\r\n\r\n",
       HeadStatus::malformed},
      {"length and chunks",
       "POST / HTTP/1.1\r\n" + ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
       HeadStatus::malformed},
      {"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", HeadStatus::malformed},
      {"a coding that is not chunked", "POST / HTTP/1.1\r\n" + ok + "Transfer-Encoding: gzip\r\n\r\n",
       HeadStatus::malformed},
      {"chunked and another coding", "POST / HTTP/1.1\r\n" + ok + "Transfer-Encoding: gzip, chunked\r\n\r\n",
       HeadStatus::malformed},
      {"chunked twice",
       "POST / HTTP/1.1\r\n" + ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
       HeadStatus::malformed},
      {"a folded line", "GET / HTTP/1.1\r\n" + ok + "X: a\r\n b\r\n\r\n", HeadStatus::malformed},
      {"a space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", HeadStatus::malformed},
      {"bare line feeds", "GET / HTTP/1.1\nHost: a\n\n", HeadStatus::malformed},
      {"one bare line feed", "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", HeadStatus::malformed},
      {"a NUL in a value", std::string("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 29), HeadStatus::malformed},
      {"no version", "GET /\r\n\r\n", HeadStatus::malformed},
      {"a TLS hello", "\x16\x03\x01\x02", HeadStatus::malformed},
      {"HTTP/2", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", HeadStatus::unsupported_version},
      {"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", HeadStatus::unsupported_version},
      {"the head of an HTTP/2 connection", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
       HeadStatus::unsupported_version},
      {"nothing yet", "", HeadStatus::need_more},
      {"a head without its end", "GET / HTTP/1.1\r\nHost: a\r\n", HeadStatus::need_more},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    EXPECT_EQ(parse_request(row.bytes).head, row.status);
  }
}

TEST(RequestParser, TakesOnlyHostsThatEveryReaderSeesAlike) {
  for (const std::string host : {"", "a", "A.b-c_d:80", "[::1]:80", "127.0.0.1", "a%20b", "a;b=c"}) {
    EXPECT_EQ(parse_request("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n").head, HeadStatus::complete)
        << host;
  }
  for (const std::string host :
       {"a b", "a/b", "u@a", "a b/c@", "a?b", "a#b", "a\tb", "a\\b", "\xC3\xA9", "<a>"}) {
    EXPECT_EQ(parse_request("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n").head, HeadStatus::malformed)
        << host;
  }
}

TEST(RequestParser, BoundsTheHead) {
  const HeadLimits limits{.bytes = 200, .fields = 4};
  const std::string start = "GET / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(parse_request(start + "X: " + std::string(100, 'x') + "\r\n\r\n", limits).head,
            HeadStatus::complete);
  EXPECT_EQ(parse_request(start + "X: " + std::string(200, 'x') + "\r\n\r\n", limits).head,
            HeadStatus::too_large);
  EXPECT_EQ(parse_request(start + "X: " + std::string(200, 'x'), limits).head, HeadStatus::too_large);
  EXPECT_EQ(parse_request(start + "A: 1\r\nB: 1\r\nC: 1\r\n\r\n", limits).head, HeadStatus::complete);
  EXPECT_EQ(parse_request(start + "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\n\r\n", limits).head,
            HeadStatus::too_many_fields);
}

struct BodyRow {
  const char* why;
  std::string fields;
  std::string body;
  BodyStatus status;
  std::string content;
  std::string rest;
};

TEST(RequestParser, TakesBodies) {
  const std::string fixed = "Content-Length: 5\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const BodyRow rows[] = {
      {"no body, and the next request behind it", "", "GET", BodyStatus::complete, "", "GET"},
      {"a length of zero", "Content-Length: 0\r\n", "GET", BodyStatus::complete, "", "GET"},
      {"a length", fixed, "hello", BodyStatus::complete, "hello", ""},
      {"a length, and the next request", fixed, "helloGET", BodyStatus::complete, "hello", "GET"},
      {"a length that is not there yet", fixed, "hell", BodyStatus::need_more, "hell", ""},
      {"one chunk", chunked, "5\r\nhello\r\n0\r\n\r\n", BodyStatus::complete, "hello", ""},
      {"chunks", chunked, "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", BodyStatus::complete, "hello", ""},
      {"sizes in any case", chunked, "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", BodyStatus::complete,
       "01234567890123456789", ""},
      {"an extension is dropped", chunked, "5;x=y\r\nhello\r\n0\r\n\r\n", BodyStatus::complete, "hello", ""},
      {"a trailer is dropped", chunked, "5\r\nhello\r\n0\r\nX: y\r\n\r\n", BodyStatus::complete, "hello", ""},
      {"chunks, and the next request", chunked, "5\r\nhello\r\n0\r\n\r\nGET", BodyStatus::complete, "hello",
       "GET"},
      {"chunks without an end", chunked, "5\r\nhello\r\n", BodyStatus::need_more, "hello", "\r\n"},
      {"a size that is no number", chunked, "zz\r\nhello\r\n", BodyStatus::malformed, "", ""},
      {"a negative size", chunked, "-5\r\nhello\r\n", BodyStatus::malformed, "", ""},
      {"a size beyond 64 bits", chunked, "fffffffffffffffff\r\nhello\r\n", BodyStatus::malformed, "", ""},
      {"a chunk that is longer than it says", chunked, "4\r\nhello\r\n0\r\n\r\n", BodyStatus::malformed,
       "hell", ""},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    const auto parsed = parse_request("POST / HTTP/1.1\r\nHost: a\r\n" + row.fields + "\r\n" + row.body);
    ASSERT_EQ(parsed.head, HeadStatus::complete);
    EXPECT_EQ(parsed.body, row.status);
    EXPECT_EQ(parsed.content, row.content);
    if (row.status == BodyStatus::complete) {
      EXPECT_EQ(parsed.rest, row.rest);
    }
  }
}

TEST(RequestParser, BoundsWhatItAsksToSeeAgain) {
  RequestParser parser;
  RequestHead head;
  const std::string text = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  ASSERT_EQ(parser.parse_head(text, {}, head).status, HeadStatus::complete);
  std::vector<std::string_view> pieces;
  EXPECT_EQ(parser.parse_body("5;" + std::string(kMaxCarry, 'x'), pieces).status, BodyStatus::malformed);
}

TEST(RequestParser, KeepsAliveByVersionAndWish) {
  EXPECT_TRUE(parse_request("GET / HTTP/1.1\r\nHost: a\r\n\r\n").keep_alive);
  EXPECT_FALSE(parse_request("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").keep_alive);
  EXPECT_FALSE(parse_request("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(parse_request("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
}

TEST(RequestParser, SeesTheWishToBeAsked) {
  RequestParser parser;
  RequestHead head;
  ASSERT_EQ(parser.parse_head("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n", {}, head).status,
            HeadStatus::complete);
  EXPECT_TRUE(head.expects_continue);
}

TEST(ResponseParser, TakesReplies) {
  const struct {
    const char* why;
    std::string bytes;
    HeadStatus head;
    BodyStatus body;
    std::string content;
  } rows[] = {
      {"a length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", HeadStatus::complete,
       BodyStatus::complete, "hi"},
      {"no reason", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", HeadStatus::complete, BodyStatus::complete,
       ""},
      {"204 has no body", "HTTP/1.1 204 No Content\r\n\r\n", HeadStatus::complete, BodyStatus::complete, ""},
      {"304 has none, whatever its length says", "HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n",
       HeadStatus::complete, BodyStatus::complete, ""},
      {"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
       HeadStatus::complete, BodyStatus::complete, "hi"},
      {"until the end of the connection", "HTTP/1.1 200 OK\r\n\r\nhi", HeadStatus::complete,
       BodyStatus::need_more, "hi"},
      {"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
       HeadStatus::malformed, BodyStatus::need_more, ""},
      {"two lengths that differ", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
       HeadStatus::malformed, BodyStatus::need_more, ""},
      {"garbage", "garbage\r\n\r\n", HeadStatus::malformed, BodyStatus::need_more, ""},
      {"no number as status", "HTTP/1.1 abc OK\r\n\r\n", HeadStatus::malformed, BodyStatus::need_more, ""},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    const auto parsed = parse_response(row.bytes);
    EXPECT_EQ(parsed.head, row.head);
    EXPECT_EQ(parsed.body, row.body);
    EXPECT_EQ(parsed.content, row.content);
  }
}

TEST(ResponseParser, ExpectsNoBodyOfAnAnswerToHead) {
  const auto parsed =
      parse_response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", /*to_head_request=*/true);
  EXPECT_EQ(parsed.body, BodyStatus::complete);
}

TEST(ResponseParser, TellsACleanEndFromACut) {
  const struct {
    const char* why;
    std::string bytes;
    BodyStatus end;
  } rows[] = {
      {"a body until the end", "HTTP/1.1 200 OK\r\n\r\nhi", BodyStatus::complete},
      {"less than its length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", BodyStatus::malformed},
      {"chunks without the last", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
       BodyStatus::malformed},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    ResponseParser parser(false);
    ResponseHead head;
    const auto parsed = parser.parse_head(row.bytes, {}, head);
    ASSERT_EQ(parsed.status, HeadStatus::complete);
    std::vector<std::string_view> pieces;
    parser.parse_body(std::string_view(row.bytes).substr(parsed.consumed), pieces);
    EXPECT_EQ(parser.parse_end(), row.end);
  }
}

}  // namespace
}  // namespace handoff::sidecar::http1
