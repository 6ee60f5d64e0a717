// Requests as arbitrary bytes: the head, and the body behind it. However the bytes are cut on their way, the
// same request must come out, and a head that was accepted must not be readable in two ways.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/ascii.hpp"
#include "sidecar/http1/message_parser.hpp"
#include "sidecar/request_target.hpp"

namespace {

using namespace handoff::sidecar;
using namespace handoff::sidecar::http1;

constexpr HeadLimits kLimits{.bytes = 4096, .fields = 20};

void require(bool holds) {
  if (!holds) std::abort();
}

struct Parsed {
  HeadStatus head = HeadStatus::need_more;
  BodyStatus body = BodyStatus::need_more;
  std::string content;
  std::string rest;
};

/// Gives the bytes `step` at a time.
Parsed parse(std::string_view bytes, std::size_t step, RequestHead& head) {
  Parsed out;
  RequestParser parser;
  std::string inbox;
  std::vector<std::string_view> pieces;
  while (!bytes.empty()) {
    const auto size = std::min(step, bytes.size());
    inbox += bytes.substr(0, size);
    bytes.remove_prefix(size);
    if (out.head == HeadStatus::need_more) {
      const auto result = parser.parse_head(inbox, kLimits, head);
      require(result.consumed <= inbox.size());
      out.head = result.status;
      if (out.head == HeadStatus::need_more) continue;
      if (out.head != HeadStatus::complete) return out;
      inbox.erase(0, result.consumed);
    }
    if (out.body == BodyStatus::need_more) {
      pieces.clear();
      const auto result = parser.parse_body(inbox, pieces);
      require(result.consumed <= inbox.size());
      for (const auto piece : pieces) out.content += piece;
      inbox.erase(0, result.consumed);
      out.body = result.status;
      if (out.body == BodyStatus::malformed) return out;
    }
  }
  out.rest = inbox;
  return out;
}

void check_head_is_plain(const RequestHead& head) {
  const std::string_view text(head.text.data(), head.text.size());
  require(text.ends_with("\r\n\r\n"));
  require(text.find('\0') == text.npos);
  std::size_t lengths = 0, codings = 0, hosts = 0;
  for (const auto& field : head.fields) {
    require(!field.name.empty());
    require(field.name.find_first_of(" \t\r\n:") == field.name.npos);
    require(field.value.find_first_of("\r\n") == field.value.npos);
    lengths += equals_ignoring_case(field.name, "content-length");
    codings += equals_ignoring_case(field.name, "transfer-encoding");
    hosts += equals_ignoring_case(field.name, "host");
  }
  require(lengths + codings <= 1 && hosts <= 1);
  require(head.chunked == (codings == 1) && head.content_length.has_value() == (lengths == 1));
  require(head.version == 10 || hosts == 1);
  // What will be written into the request to the engine.
  std::string buffer;
  if (target_form(head.target) != TargetForm::invalid) {
    const auto target = origin_form(head.target, buffer);
    require(!target.empty() && target.find_first_of(" \r\n") == target.npos);
  }
  std::string path;
  (void)normalised_path(head.target, path);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  RequestHead whole_head, cut_head;
  const auto whole = parse(bytes, bytes.size() + 1, whole_head);
  if (whole.head == HeadStatus::complete) check_head_is_plain(whole_head);
  const auto cut = parse(bytes, 1 + data[0] % 64, cut_head);
  const auto refused = [](HeadStatus status) {
    return status != HeadStatus::complete && status != HeadStatus::need_more;
  };
  if (refused(whole.head) && refused(cut.head)) return 0;  // of two reasons the one that is seen first
  require(cut.head == whole.head);
  if (whole.head != HeadStatus::complete) return 0;
  require(cut_head.text == whole_head.text && cut_head.fields.size() == whole_head.fields.size());
  require(cut.body == whole.body);
  if (whole.body == BodyStatus::malformed) return 0;  // how far it got is of no interest
  require(cut.content == whole.content);
  if (whole.body == BodyStatus::complete) require(cut.rest == whole.rest);
  return 0;
}
