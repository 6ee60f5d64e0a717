#include "http_reader.hpp"

#include <strings.h>

#include <algorithm>
#include <charconv>

namespace bench {
namespace {

constexpr std::size_t kMaxHead = 64U * 1024U;

bool equals_ignoring_case(std::string_view left, std::string_view right) {
  return left.size() == right.size() && strncasecmp(left.data(), right.data(), left.size()) == 0;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

HttpReader::Step HttpReader::next(std::string_view& input) {
  if (state_ == State::finished) {
    head_.clear();
    state_ = State::head;
  }
  if (state_ == State::broken) return broken();
  if (state_ == State::head) return read_head(input);
  if (state_ == State::length && remaining_ == 0) {
    state_ = State::finished;
    return {Kind::end, {}};
  }
  if (state_ == State::length || state_ == State::until_close) {
    if (input.empty()) return {Kind::need_more, {}};
    const std::size_t take =
        state_ == State::length ? std::min<std::size_t>(input.size(), remaining_) : input.size();
    const std::string_view body = input.substr(0, take);
    input.remove_prefix(take);
    if (state_ == State::length) remaining_ -= take;
    return {Kind::body, body};
  }
  return read_chunked(input);
}

HttpReader::Step HttpReader::read_head(std::string_view& input) {
  if (input.empty()) return {Kind::need_more, {}};
  if (head_.empty()) {  // the usual case: the whole head at once, and no byte of the body copied
    const std::size_t end = input.substr(0, kMaxHead).find("\r\n\r\n");
    if (end != std::string_view::npos) {
      head_.assign(input.substr(0, end + 2));
      input.remove_prefix(end + 4);
      return interpret_head() ? Step{Kind::head, {}} : broken();
    }
  }
  const std::size_t before = head_.size();
  // The blank line may straddle two inputs, so look again at the last three bytes.
  head_.append(input.substr(0, kMaxHead));
  const std::size_t end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
  if (end == std::string::npos) {
    if (head_.size() >= kMaxHead) return broken();
    input = {};
    return {Kind::need_more, {}};
  }
  input.remove_prefix(end + 4 - before);
  head_.resize(end + 2);
  if (!interpret_head()) return broken();
  return {Kind::head, {}};
}

bool HttpReader::interpret_head() {
  const std::string_view head = head_;
  std::size_t line_end = head.find("\r\n");
  status_ = 0;
  if (role_ == Role::responses) {
    const std::string_view line = head.substr(0, line_end);
    if (line.size() < 12 || !line.starts_with("HTTP/1.")) return false;
    std::from_chars(line.data() + 9, line.data() + 12, status_);
  }
  bool has_length = false;
  bool chunked = false;
  keeps_alive_ = true;
  remaining_ = 0;
  for (std::size_t begin = line_end + 2; begin < head.size(); begin = line_end + 2) {
    line_end = head.find("\r\n", begin);
    const std::string_view line = head.substr(begin, line_end - begin);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return false;
    if (line[0] != 'c' && line[0] != 'C' && line[0] != 't' && line[0] != 'T') continue;
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trim(line.substr(colon + 1));
    if (equals_ignoring_case(name, "content-length")) {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), remaining_);
      if (error != std::errc() || end != value.data() + value.size()) return false;
      has_length = true;
    } else if (equals_ignoring_case(name, "transfer-encoding")) {
      chunked = equals_ignoring_case(value, "chunked");
    } else if (equals_ignoring_case(name, "connection")) {
      keeps_alive_ = !equals_ignoring_case(value, "close");
    }
  }
  const bool bodiless = role_ == Role::requests || status_ < 200 || status_ == 204 || status_ == 304;
  if (chunked) {
    state_ = State::chunk_size;
    line_.clear();
  } else if (has_length || bodiless) {
    state_ = State::length;
  } else {
    state_ = State::until_close;
  }
  return true;
}

HttpReader::Step HttpReader::read_chunked(std::string_view& input) {
  for (;;) {
    switch (state_) {
      case State::chunk_size: {
        if (!read_line(input)) return {Kind::need_more, {}};
        const std::string_view digits = trim(std::string_view(line_).substr(0, line_.find(';')));
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), remaining_, 16);
        if (error != std::errc() || end != digits.data() + digits.size()) return broken();
        state_ = remaining_ == 0 ? State::trailer : State::chunk_data;
        line_.clear();
        break;
      }
      case State::chunk_data: {
        if (input.empty()) return {Kind::need_more, {}};
        const std::size_t take = std::min<std::size_t>(input.size(), remaining_);
        const std::string_view body = input.substr(0, take);
        input.remove_prefix(take);
        remaining_ -= take;
        if (remaining_ == 0) state_ = State::chunk_end;
        return {Kind::body, body};
      }
      case State::chunk_end:
        if (!read_line(input)) return {Kind::need_more, {}};
        if (!line_.empty()) return broken();
        state_ = State::chunk_size;
        break;
      case State::trailer:
        if (!read_line(input)) return {Kind::need_more, {}};
        if (line_.empty()) {
          state_ = State::finished;
          return {Kind::end, {}};
        }
        line_.clear();
        break;
      default:
        return broken();
    }
  }
}

bool HttpReader::read_line(std::string_view& input) {
  const std::size_t end = input.find('\n');
  line_.append(input.substr(0, end));
  if (end == std::string_view::npos) {
    input = {};
    return false;
  }
  input.remove_prefix(end + 1);
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  return true;
}

HttpReader::Step HttpReader::broken() {
  state_ = State::broken;
  return {Kind::malformed, {}};
}

}  // namespace bench
