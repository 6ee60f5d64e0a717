#include "sidecar/http1/message_parser.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "sidecar/ascii.hpp"
#include "sidecar/http1/chunk_reader.hpp"
#include "sidecar/recycled.hpp"

namespace handoff::sidecar::http1 {
namespace {

namespace beast_http = boost::beast::http;
using boost::system::error_code;
using BeastView = boost::beast::string_view;

std::string_view to_std(BeastView text) {
  return {text.data(), text.size()};
}

error_code refused() {
  return beast_http::make_error_code(beast_http::error::bad_value);
}

// The bytes of which a host and a port are made (RFC 3986, 3.2.2). Not more is asked: what the name means is
// the engine's to say, but no blank, slash or `@` may make two readers see two hosts.
bool is_host(std::string_view value) {
  static constexpr std::string_view kMarks = "-._~!$&'()*+,;=:[]%";
  return std::all_of(value.begin(), value.end(), [](char c) {
    return is_ascii_digit(c) || is_ascii_alpha(c) || kMarks.find(c) != std::string_view::npos;
  });
}

// What Beast tells while it parses, written into a head, and afterwards into a list of pieces.
template <bool IsRequest, class Head>
class Collector final : public beast_http::basic_parser<IsRequest> {
 public:
  Collector() {
    this->body_limit(boost::none);
    this->header_limit(std::numeric_limits<std::uint32_t>::max());  // the caller has bounded the head already
    this->eager(false);  // one element at a time, so that the caller sees between them
  }

  void begin_head(Head& head, std::size_t max_fields) {
    head_ = &head;
    max_fields_ = max_fields;
  }
  void end_head() { head_ = nullptr; }
  void collect_into(std::vector<std::string_view>* pieces) { pieces_ = pieces; }
  bool too_many_fields() const { return too_many_fields_; }

 private:
  void on_request_impl(beast_http::verb, BeastView method, BeastView target, int version,
                       error_code&) override {
    if constexpr (IsRequest) {
      head_->method = to_std(method);
      head_->target = to_std(target);
      head_->version = version;
    }
  }

  void on_response_impl(int status, BeastView reason, int version, error_code&) override {
    if constexpr (!IsRequest) {
      head_->status = static_cast<unsigned>(status);
      head_->reason = to_std(reason);
      head_->version = version;
    }
  }

  void on_field_impl(beast_http::field, BeastView name, BeastView value, error_code& ec) override {
    if (head_->fields.size() == max_fields_) {
      too_many_fields_ = true;
      ec = refused();
      return;
    }
    const HeaderField field{to_std(name), to_std(value), classify_header(to_std(name))};
    head_->fields.push_back(field);
    switch (field.kind) {
      case HeaderClass::content_length:
        // Two of them, or a list, is how one message is made to look like two.
        if (content_lengths_++ > 0 && IsRequest) ec = refused();
        if (!std::all_of(field.value.begin(), field.value.end(),
                         [](char c) { return c >= '0' && c <= '9'; })) {
          ec = refused();
        }
        break;
      case HeaderClass::transfer_encoding:
        // Anything but exactly "chunked" leaves the end of the message to opinion.
        if (transfer_encodings_++ > 0 || !equals_ignoring_case(field.value, "chunked")) ec = refused();
        break;
      case HeaderClass::host:
        if (IsRequest && (hosts_++ > 0 || !is_host(field.value))) ec = refused();
        break;
      case HeaderClass::connection:
        if (!head_->connection.add(field.value)) ec = refused();
        break;
      default:
        break;
    }
  }

  void on_header_impl(error_code& ec) override {
    head_->keep_alive = this->keep_alive();
    head_->chunked = transfer_encodings_ > 0;
    if (content_lengths_ > 0) head_->content_length = this->content_length().value_or(0);
    if (transfer_encodings_ > 0 && (content_lengths_ > 0 || head_->version < 11)) ec = refused();
    if constexpr (IsRequest) {
      if (head_->version == 11 && hosts_ == 0) ec = refused();
    } else {
      head_->body_to_eof = this->need_eof();
    }
  }

  void on_body_init_impl(boost::optional<std::uint64_t> const&, error_code&) override {}

  std::size_t on_body_impl(BeastView body, error_code&) override {
    if (!body.empty()) pieces_->push_back(to_std(body));
    return body.size();
  }

  // Chunks go by ChunkReader; Beast is not shown them.
  void on_chunk_header_impl(std::uint64_t, BeastView, error_code& ec) override { ec = refused(); }
  std::size_t on_chunk_body_impl(std::uint64_t, BeastView, error_code& ec) override {
    ec = refused();
    return 0;
  }

  void on_finish_impl(error_code&) override {}

  Head* head_ = nullptr;
  std::vector<std::string_view>* pieces_ = nullptr;
  std::size_t max_fields_ = 0;
  int content_lengths_ = 0;
  int transfer_encodings_ = 0;
  int hosts_ = 0;  // in a request
  bool too_many_fields_ = false;
};

constexpr std::string_view kEndOfHead = "\r\n\r\n";

// Offset of the first byte of a message; empty lines before a request are to be ignored (RFC 9112, 2.2).
std::size_t skip_empty_lines(std::string_view data) {
  std::size_t at = 0;
  while (data.substr(at).starts_with("\r\n")) at += 2;
  return at;
}

// A head folded over lines, or ended by bare line feeds, is read differently by different implementations.
bool has_ambiguous_lines(std::string_view head) {
  for (std::size_t at = head.find('\n'); at != std::string_view::npos && at + 1 < head.size();
       at = head.find('\n', at + 1)) {
    const char next = head[at + 1];
    if (next == ' ' || next == '\t' || at == 0 || head[at - 1] != '\r') return true;
  }
  return false;
}

bool names_other_version(std::string_view head) {
  const auto line = head.substr(0, head.find("\r\n"));
  const auto at = line.rfind("HTTP/");
  if (at == std::string_view::npos) return false;
  const auto version = line.substr(at + 5, 3);
  return version.size() == 3 && version[1] == '.' && version != "1.1" && version != "1.0" &&
         version[0] >= '0' && version[0] <= '9' && version[2] >= '0' && version[2] <= '9';
}

template <bool IsRequest, class Head>
HeadResult parse_whole_head(Collector<IsRequest, Head>& parser, std::string_view data,
                            const HeadLimits& limits, Head& head) {
  const auto start = IsRequest ? skip_empty_lines(data) : 0;
  const auto text = data.substr(start);
  if (start > 64) return {HeadStatus::malformed};
  if (text.empty() || text == "\r") return {HeadStatus::need_more};
  // Something else than HTTP (a TLS hello, say) is told at its first byte, not at a time-out.
  if (static_cast<unsigned char>(text[0]) <= ' ' || static_cast<unsigned char>(text[0]) >= 0x7f) {
    return {HeadStatus::malformed};
  }
  const auto end = text.find(kEndOfHead);
  if (end == std::string_view::npos) {
    if (text.size() > limits.bytes) return {HeadStatus::too_large};
    if (text.find("\n\n") != std::string_view::npos) return {HeadStatus::malformed};
    return {HeadStatus::need_more};
  }
  const auto size = end + kEndOfHead.size();
  if (size > limits.bytes) return {HeadStatus::too_large};
  head.clear();
  head.fields.reserve(16);
  head.text.assign(text.data(), text.data() + size);
  const std::string_view copy(head.text.data(), size);
  if (has_ambiguous_lines(copy.substr(0, end + 1))) return {HeadStatus::malformed};
  error_code ec;
  parser.begin_head(head, limits.fields);
  const auto consumed = parser.put(boost::asio::buffer(copy), ec);
  parser.end_head();
  if (parser.too_many_fields()) return {HeadStatus::too_many_fields};
  if (ec || consumed != size || !parser.is_header_done()) {
    if (ec == beast_http::error::bad_version && names_other_version(copy))
      return {HeadStatus::unsupported_version};
    return {HeadStatus::malformed};
  }
  return {HeadStatus::complete, start + size};
}

// One message's parsers: Beast's for the head and for bodies of a length or to the end, ours for chunks.
template <bool IsRequest, class Head>
class Message {
 public:
  Message() { reset(); }
  void reset(bool to_head_request = false) {
    parser_.emplace();
    chunks_.reset();
    if constexpr (!IsRequest) parser_->skip(to_head_request);
  }

  HeadResult parse_head(std::string_view data, const HeadLimits& limits, Head& head) {
    const auto result = parse_whole_head(*parser_, data, limits, head);
    if (result.status == HeadStatus::complete && head.chunked && !parser_->is_done()) chunks_.emplace();
    return result;
  }

  BodyResult parse_body(std::string_view data, std::vector<std::string_view>& pieces) {
    return chunks_ ? parse_chunks(data, pieces) : parse_plain(data, pieces);
  }

  BodyStatus parse_end() {
    if (is_complete()) return BodyStatus::complete;
    if (chunks_ || !parser_->is_header_done()) return BodyStatus::malformed;
    error_code ec;
    parser_->put_eof(ec);
    return !ec && parser_->is_done() ? BodyStatus::complete : BodyStatus::malformed;
  }

  bool is_complete() const { return chunks_ ? chunks_->is_complete() : parser_->is_done(); }

 private:
  BodyResult parse_chunks(std::string_view data, std::vector<std::string_view>& pieces) {
    const auto result = chunks_->read(data, pieces);
    if (result.status == ChunkReader::Status::complete) return {BodyStatus::complete, result.consumed};
    if (result.status == ChunkReader::Status::malformed || data.size() - result.consumed > kMaxCarry) {
      return {BodyStatus::malformed, result.consumed};
    }
    return {BodyStatus::need_more, result.consumed, result.verbatim};
  }

  BodyResult parse_plain(std::string_view data, std::vector<std::string_view>& pieces) {
    parser_->collect_into(&pieces);
    std::size_t consumed = 0;
    while (consumed < data.size() && !parser_->is_done()) {
      error_code ec;
      consumed += parser_->put(boost::asio::buffer(data.substr(consumed)), ec);
      if (ec) return {BodyStatus::malformed, consumed};
    }
    return {parser_->is_done() ? BodyStatus::complete : BodyStatus::need_more, consumed};
  }

  std::optional<Collector<IsRequest, Head>> parser_;  // Beast's serve one message: the next is made in place
  std::optional<ChunkReader> chunks_;
};

}  // namespace

struct RequestParser::Impl : Message<true, RequestHead> {};

RequestParser::RequestParser() : impl_(std::make_unique<Impl>()) {}
RequestParser::~RequestParser() = default;
void RequestParser::reset() {
  impl_->reset();
}

HeadResult RequestParser::parse_head(std::string_view data, const HeadLimits& limits, RequestHead& head) {
  const auto result = impl_->parse_head(data, limits, head);
  if (result.status == HeadStatus::complete) {
    if (const auto* expect = head.find(HeaderClass::expect)) {
      head.expects_continue = equals_ignoring_case(expect->value, "100-continue");
    }
  }
  return result;
}

BodyResult RequestParser::parse_body(std::string_view data, std::vector<std::string_view>& pieces) {
  return impl_->parse_body(data, pieces);
}

bool RequestParser::is_complete() const {
  return impl_->is_complete();
}

struct ResponseParser::Impl : Message<false, ResponseHead>, Recycled<Impl> {};

ResponseParser::ResponseParser(bool to_head_request)
    : impl_(std::make_unique<Impl>()), to_head_request_(to_head_request) {
  reset();
}
ResponseParser::~ResponseParser() = default;
void ResponseParser::reset() {
  impl_->reset(to_head_request_);
}

HeadResult ResponseParser::parse_head(std::string_view data, const HeadLimits& limits, ResponseHead& head) {
  return impl_->parse_head(data, limits, head);
}

BodyResult ResponseParser::parse_body(std::string_view data, std::vector<std::string_view>& pieces) {
  return impl_->parse_body(data, pieces);
}

BodyStatus ResponseParser::parse_end() {
  return impl_->parse_end();
}

bool ResponseParser::is_complete() const {
  return impl_->is_complete();
}

}  // namespace handoff::sidecar::http1
