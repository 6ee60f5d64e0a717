#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/json/value_skip.hpp"
#include "shared/json/value_text.hpp"

namespace handoff::json {

/// One member of a scanned object. Positions are byte offsets into the scanned text.
struct Member {
  std::string_view name;        ///< escapes resolved; views the text, or the scan when the key had escapes
  std::size_t key_begin = 0;    ///< the key's opening quote
  std::size_t key_end = 0;      ///< one past the key's closing quote
  std::size_t value_begin = 0;  ///< first byte of the value
  std::size_t value_end = 0;    ///< one past the value, without white space around it
  ValueKind kind = ValueKind::other;
};

enum class ScanStatus : std::uint8_t {
  object,            ///< the text is one object; `members()` lists it
  not_an_object,     ///< the text starts like another JSON value
  malformed,         ///< no JSON parser takes this for an object
  too_many_members,  ///< more members than the limit
};

/// Lists the members of a JSON object without building a tree, so that the original bytes can be edited in
/// place.
///
/// The list is what an engine's parser would see: every text that Python's json or a stricter parser accepts
/// as an object is `object` here, with the same names and values in the same order, duplicates included.
/// Beyond that it is lenient: nested values are skipped by matching strings and brackets, an unquoted word
/// that JSON doesn't know is listed as `ValueKind::other`, raw control characters in strings are let through.
/// The text must be UTF-8 without a byte order mark: ask `detect_encoding` first.
///
/// Keeps its memory from scan to scan, so one object per connection or thread is meant. Not thread-safe, not
/// copyable. What it returns views the text and this object: both must stay unchanged while it is used.
class ObjectScan {
 public:
  static constexpr std::size_t kDefaultMaxMembers = 4096;

  ObjectScan() = default;
  ObjectScan(const ObjectScan&) = delete;
  ObjectScan& operator=(const ObjectScan&) = delete;

  /// Scans `text`, which must outlive the use of the result. Linear in its size, safe at any nesting depth.
  /// Unless the status is `object`, there are no members.
  ScanStatus scan(std::string_view text, std::size_t max_members = kDefaultMaxMembers);

  std::span<const Member> members() const { return members_; }

  /// Offsets of the object's braces; 0 unless the last status was `object`.
  std::size_t open_brace() const { return open_brace_; }
  std::size_t close_brace() const { return close_brace_; }

  /// The member that wins in a parser that keeps the last duplicate; null when there is none of that name.
  const Member* find_last(std::string_view name) const;

  /// The raw text of a member's value.
  std::string_view value(const Member& member) const {
    return text_.substr(member.value_begin, member.value_end - member.value_begin);
  }

 private:
  struct EscapedName {
    std::size_t member;
    std::size_t begin;
    std::size_t size;
  };

  void reset(std::string_view text);
  ScanStatus scan_members(std::size_t max_members);
  bool resolve_name(const Member& member);
  void resolve_escaped_names();

  std::string_view text_;
  std::vector<Member> members_;
  std::vector<EscapedName> escaped_names_;
  std::string arena_;
  BracketStack brackets_;
  std::size_t open_brace_ = 0;
  std::size_t close_brace_ = 0;
};

}  // namespace handoff::json
