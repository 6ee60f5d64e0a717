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

/// From a key's opening quote to the first byte of its value; `at` is kNoEnd if there is none. False: the
/// name is long, or has escapes.
inline bool scan_key(std::string_view text, std::size_t& at, Member& member) {
  const std::size_t begin = at;
  at = kNoEnd;
  if (begin >= text.size() || text[begin] != '"') return true;
  std::size_t quote = find_short_string_end(text, begin + 1);
  const bool is_short = quote != kNoEnd;
  if (!is_short) quote = find_closing_quote(text, begin + 1);
  if (quote == kNoEnd) return true;
  member.key_begin = begin;
  member.key_end = quote + 1;
  member.name = {text.data() + begin + 1, quote - begin - 1};
  const std::size_t colon = skip_space(text, quote + 1);
  if (colon < text.size() && text[colon] == ':') at = skip_space(text, colon + 1);
  return is_short;
}

/// From a value's first byte to the first byte after it that is not white space; `at` is kNoEnd if there is
/// none.
inline void scan_value(std::string_view text, std::size_t& at, BracketStack& brackets, Member& member) {
  const std::size_t begin = at;
  at = kNoEnd;
  if (begin >= text.size()) return;
  std::size_t end = 0;
  switch (text[begin]) {
    case '"':
      end = find_string_end(text, begin + 1);
      if (end != kNoEnd) ++end;
      member.kind = ValueKind::string;
      break;
    case '{':
      end = skip_nested(text, begin, brackets);
      member.kind = ValueKind::object;
      break;
    case '[':
      end = skip_nested(text, begin, brackets);
      member.kind = ValueKind::array;
      break;
    default:
      end = skip_scalar(text, begin);
      if (end == begin) return;
      member.kind = kind_of({text.data() + begin, end - begin});
  }
  if (end == kNoEnd) return;
  member.value_begin = begin;
  member.value_end = end;
  at = skip_space(text, end);
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

// One loop over local values: small replies are scanned for every request, and their cost is the cost per
// member.
ScanStatus ObjectScan::scan_members(std::size_t max_members) {
  members_.reserve(kUsualMembers);
  const std::string_view text = text_;
  std::size_t at = skip_space(text, open_brace_ + 1);
  bool is_open = at == text.size() || text[at] != '}';
  while (is_open) {
    Member member;
    const bool plain_name = scan_key(text, at, member);
    if (at == kNoEnd) return ScanStatus::malformed;
    if (!plain_name && !resolve_name(member)) return ScanStatus::malformed;
    scan_value(text, at, brackets_, member);
    if (at >= text.size()) return ScanStatus::malformed;  // kNoEnd included
    if (members_.size() == max_members) return ScanStatus::too_many_members;
    members_.push_back(member);
    if (text[at] == ',') {
      at = skip_space(text, at + 1);
    } else if (text[at] == '}') {
      is_open = false;
    } else {
      return ScanStatus::malformed;
    }
  }
  close_brace_ = at;
  return skip_space(text, at + 1) == text.size() ? ScanStatus::object : ScanStatus::malformed;
}

/// Resolves the escapes of a name, if it has any.
bool ObjectScan::resolve_name(const Member& member) {
  if (member.name.find('\\') == std::string_view::npos) return true;
  const std::size_t begin = arena_.size();
  if (!append_unescaped(arena_, member.name)) return false;
  escaped_names_.push_back({members_.size(), begin, arena_.size() - begin});
  return true;
}

/// Only now, since the arena may have moved while it grew.
void ObjectScan::resolve_escaped_names() {
  for (const EscapedName& name : escaped_names_) {
    members_[name.member].name = std::string_view(arena_).substr(name.begin, name.size);
  }
}

}  // namespace handoff::json
