// Replies of engines as arbitrary bytes, interim ones included. However the bytes are cut, the same reply
// must come out.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/http1/message_parser.hpp"

namespace {

using namespace handoff::sidecar::http1;

constexpr HeadLimits kLimits{.bytes = 4096, .fields = 20};

void require(bool holds) {
  if (!holds) std::abort();
}

struct Parsed {
  HeadStatus head = HeadStatus::need_more;
  BodyStatus body = BodyStatus::need_more;
  BodyStatus end = BodyStatus::malformed;  // if the connection ends here
  std::string content;
};

Parsed parse(std::string_view bytes, std::size_t step, bool to_head_request, ResponseHead& head) {
  Parsed out;
  ResponseParser parser(to_head_request);
  std::string inbox;
  std::vector<std::string_view> pieces;
  while (!bytes.empty()) {
    const auto size = std::min(step, bytes.size());
    inbox += bytes.substr(0, size);
    bytes.remove_prefix(size);
    while (out.head == HeadStatus::need_more) {
      const auto result = parser.parse_head(inbox, kLimits, head);
      require(result.consumed <= inbox.size());
      if (result.status == HeadStatus::need_more) break;
      out.head = result.status;
      if (out.head != HeadStatus::complete) return out;
      inbox.erase(0, result.consumed);
      if (head.status < 200) {  // as a leg does
        parser.reset();
        out.head = HeadStatus::need_more;
        if (inbox.empty()) break;
      }
    }
    if (out.head == HeadStatus::need_more || out.body != BodyStatus::need_more) continue;
    pieces.clear();
    const auto result = parser.parse_body(inbox, pieces);
    require(result.consumed <= inbox.size());
    for (const auto piece : pieces) out.content += piece;
    inbox.erase(0, result.consumed);
    out.body = result.status;
    if (out.body == BodyStatus::malformed) return out;
  }
  if (out.head == HeadStatus::complete) out.end = parser.parse_end();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool to_head_request = (data[0] & 128) != 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  ResponseHead whole_head, cut_head;
  const auto whole = parse(bytes, bytes.size() + 1, to_head_request, whole_head);
  const auto cut = parse(bytes, 1 + data[0] % 64, to_head_request, cut_head);
  const auto refused = [](HeadStatus status) {
    return status != HeadStatus::complete && status != HeadStatus::need_more;
  };
  if (refused(whole.head) && refused(cut.head)) return 0;  // of two reasons the one that is seen first
  require(cut.head == whole.head);
  if (whole.head != HeadStatus::complete) return 0;
  require(cut_head.text == whole_head.text && cut_head.status == whole_head.status);
  require(whole_head.version == 11 || !whole_head.chunked);
  require(!whole_head.chunked || !whole_head.content_length);
  require(cut.body == whole.body);
  if (whole.body == BodyStatus::malformed) return 0;
  require(cut.content == whole.content && cut.end == whole.end);
  if (whole.body == BodyStatus::complete && whole_head.content_length && !to_head_request &&
      whole_head.status != 204 && whole_head.status != 304) {
    require(whole.content.size() == *whole_head.content_length);
  }
  return 0;
}
