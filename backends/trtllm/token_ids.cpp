#include "backends/trtllm/token_ids.hpp"

#include "backends/json_text/json_text.hpp"

namespace handoff::trtllm {

bool is_id_list(std::string_view value, Api api) {
  json_text::Cursor cursor(value);
  if (!cursor.take('[')) return false;
  const bool nested = cursor.next_token() == '[';
  if (nested && api != Api::completions) return false;
  if (!nested) cursor = json_text::Cursor(value);
  if (!cursor.take_plain_integers()) return false;
  return (!nested || cursor.take(']')) && cursor.only_space_left();
}

}  // namespace handoff::trtllm
