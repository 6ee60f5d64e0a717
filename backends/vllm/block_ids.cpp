#include "backends/vllm/block_ids.hpp"

#include "backends/json_text/json_text.hpp"

namespace handoff::vllm {
namespace {

using json_text::Cursor;

/// The rest of a list of groups, after its opening bracket.
bool take_groups(Cursor& cursor) {
  do {
    if (!cursor.take_plain_integers()) return false;
  } while (cursor.take(','));
  return cursor.take(']');
}

}  // namespace

BlockIds classify_block_ids(std::string_view value) {
  Cursor cursor(value);
  if (!cursor.take('[')) return BlockIds::invalid;
  const char first = cursor.next_token();
  bool complete = true;
  if (first == '[') {
    complete = take_groups(cursor);
  } else {
    cursor = Cursor(value);
    complete = cursor.take_plain_integers();
  }
  if (!complete || !cursor.only_space_left()) return BlockIds::invalid;
  if (first == ']') return BlockIds::empty;
  return first == '[' ? BlockIds::grouped : BlockIds::flat;
}

}  // namespace handoff::vllm
