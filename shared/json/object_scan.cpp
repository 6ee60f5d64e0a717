#include "shared/json/object_scan.hpp"

#include <algorithm>

#include "shared/json/string_text.hpp"

namespace handoff::json {
namespace {

/// An arena beyond this is given back at the next scan: one odd body must not cost memory for ever.
constexpr std::size_t kKeptArenaBytes = 64 * 1024;

/// Enough for most bodies at the first allocation.
constexpr std::size_t kUsualMembers = 8;

bool starts_a_value(char c) {
  constexpr std::string_view kFirstBytes = "[\"-0123456789tfnNI";
  return kFirstBytes.find(c) != std::string_view::npos;
}

}  // namespace

ScanStatus ObjectScan::scan(std::string_view text, std::size_t max_members) {
  reset(text);
  open_brace_ = skip_space(text_, 0);
  ScanStatus status = ScanStatus::malformed;
  if (open_brace_ < text_.size()) {
    const char first = text_[open_brace_];
    if (first == '{') {
      status = scan_members(max_members);
    } else if (starts_a_value(first)) {
      status = ScanStatus::not_an_object;
    }
  }
  if (status == ScanStatus::object) {
    resolve_escaped_names();
  } else {
    reset(text);
  }
  return status;
}

const Member* ObjectScan::find_last(std::string_view name) const {
  const auto found =
      std::find_if(members_.rbegin(), members_.rend(), [name](const Member& m) { return m.name == name; });
  return found == members_.rend() ? nullptr : &*found;
}

void ObjectScan::reset(std::string_view text) {
  text_ = text;
  members_.clear();
  escaped_names_.clear();
  arena_.clear();
  if (arena_.capacity() > kKeptArenaBytes) arena_.shrink_to_fit();
  brackets_.shrink();
  open_brace_ = 0;
  close_brace_ = 0;
}

ScanStatus ObjectScan::scan_members(std::size_t max_members) {
  members_.reserve(kUsualMembers);
  std::size_t at = skip_space(text_, open_brace_ + 1);
  if (at < text_.size() && text_[at] == '}') {
    close_brace_ = at;
  }
  while (close_brace_ == 0) {
    Member member;
    if (!scan_key(at, member) || !scan_value(at, member)) return ScanStatus::malformed;
    if (members_.size() == max_members) return ScanStatus::too_many_members;
    members_.push_back(member);
    if (at == text_.size()) return ScanStatus::malformed;
    if (text_[at] == '}') {
      close_brace_ = at;
    } else if (text_[at] == ',') {
      at = skip_space(text_, at + 1);
    } else {
      return ScanStatus::malformed;
    }
  }
  return skip_space(text_, close_brace_ + 1) == text_.size() ? ScanStatus::object : ScanStatus::malformed;
}

/// From a key's opening quote to the first byte of its value.
bool ObjectScan::scan_key(std::size_t& at, Member& member) {
  if (at == text_.size() || text_[at] != '"') return false;
  member.key_begin = at;
  std::size_t quote = find_short_string_end(text_, at + 1);
  const bool is_short = quote != kNoEnd;
  if (!is_short) quote = find_closing_quote(text_, at + 1);
  if (quote == kNoEnd) return false;
  member.key_end = quote + 1;
  member.name = text_.substr(at + 1, quote - at - 1);
  if (!is_short && member.name.find('\\') != std::string_view::npos) {
    const std::size_t begin = arena_.size();
    if (!append_unescaped(arena_, member.name)) return false;
    escaped_names_.push_back({members_.size(), begin, arena_.size() - begin});
  }
  at = skip_space(text_, quote + 1);
  if (at == text_.size() || text_[at] != ':') return false;
  at = skip_space(text_, at + 1);
  return true;
}

/// From a value's first byte to the first byte after it that is not white space.
bool ObjectScan::scan_value(std::size_t& at, Member& member) {
  if (at == text_.size()) return false;
  member.value_begin = at;
  const char first = text_[at];
  std::size_t end = 0;
  if (first == '"') {
    std::size_t quote = find_short_string_end(text_, at + 1);
    if (quote == kNoEnd) quote = find_closing_quote(text_, at + 1);
    end = quote == kNoEnd ? kNoEnd : quote + 1;
  } else if (first == '{' || first == '[') {
    end = skip_nested(text_, at, brackets_);
  } else {
    end = skip_scalar(text_, at);
  }
  if (end == kNoEnd || end == at) return false;
  member.value_end = end;
  member.kind = kind_of(value(member));
  at = skip_space(text_, end);
  return true;
}

/// Only now, since the arena may have moved while it grew.
void ObjectScan::resolve_escaped_names() {
  for (const EscapedName& name : escaped_names_) {
    members_[name.member].name = std::string_view(arena_).substr(name.begin, name.size);
  }
}

}  // namespace handoff::json
