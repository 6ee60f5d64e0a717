// Chunked request bodies that are passed on while they arrive. What goes to the engine must be well framed
// and say the same as what came, wherever it was cut and whatever part had been read before.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/request_body.hpp"

namespace {

using namespace handoff::sidecar;

void require(bool holds) {
  if (!holds) std::abort();
}

constexpr std::string_view kHead = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

struct Content {
  http1::BodyStatus status = http1::BodyStatus::need_more;
  std::string bytes;
  std::size_t consumed = 0;
};

Content content_of(std::string_view body) {
  http1::RequestParser parser;
  http1::RequestHead head;
  require(parser.parse_head(kHead, {}, head).status == http1::HeadStatus::complete);
  std::vector<std::string_view> pieces;
  const auto parsed = parser.parse_body(body, pieces);
  Content out{parsed.status, {}, parsed.consumed};
  for (const auto piece : pieces) out.bytes += piece;
  return out;
}

/// A client that has sent nothing, so that only the inbox is read. The other end stays open.
class QuietClient {
 public:
  QuietClient() : deadlines_(context_) {
    require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_) == 0);
    Socket socket(context_);
    socket.assign(tcp::v4(), ends_[0]);
    connection_ = std::make_shared<ClientConnection>(deadlines_, std::move(socket), milliseconds(1000));
  }
  ~QuietClient() { ::close(ends_[1]); }
  ClientConnection& connection() { return *connection_; }

 private:
  net::io_context context_{1};
  DeadlineQueue deadlines_;
  int ends_[2];
  std::shared_ptr<ClientConnection> connection_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t step = 1 + data[0] % 64;
  std::string_view body(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto expected = content_of(body);

  QuietClient quiet;
  auto& client = quiet.connection();
  http1::RequestParser parser;
  http1::RequestHead head;
  require(parser.parse_head(kHead, {}, head).status == http1::HeadStatus::complete);
  // The part that was read before it turned out to be too much to keep.
  std::vector<std::string_view> pieces;
  const auto first = std::min<std::size_t>(data[1], body.size());
  std::string inbox(body.substr(0, first));
  const auto before = parser.parse_body(inbox, pieces);
  if (before.status == http1::BodyStatus::malformed) return 0;
  std::string prefix;
  for (const auto piece : pieces) prefix += piece;
  client.inbox = inbox.substr(before.consumed);
  body.remove_prefix(first);

  static std::vector<char> scratch(64 * 1024);
  ClientUpload upload(client, parser, head, prefix, scratch, milliseconds(1000));
  std::string sent;
  bool failed = false;
  while (!failed && !upload.finished()) {
    std::string wire;
    failed = !upload.try_next(wire);
    if (!failed) sent += wire;
    if (failed || upload.finished() || !wire.empty()) continue;
    if (body.empty()) break;
    const auto next = std::min(step, body.size());
    client.inbox += body.substr(0, next);
    body.remove_prefix(next);
  }
  require(failed == (expected.status == http1::BodyStatus::malformed));
  if (failed) {
    require(upload.malformed());
    return 0;
  }
  require(upload.finished() == (expected.status == http1::BodyStatus::complete));
  const auto passed_on = content_of(sent);
  require(passed_on.bytes == expected.bytes && passed_on.status == expected.status);
  require(upload.bytes() == expected.bytes.size());
  if (upload.finished()) require(passed_on.consumed == sent.size());
  return 0;
}
