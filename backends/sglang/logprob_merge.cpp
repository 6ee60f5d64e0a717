#include "backends/sglang/logprob_merge.hpp"

#include "backends/json_text/values.hpp"

namespace handoff::sglang {
namespace {

using json_text::find_member;

/// What stands between the brackets; empty for anything but a list, and for an empty one.
std::string_view inside_of(std::string_view list) {
  if (list.size() < 2 || list.front() != '[' || list.back() != ']') return {};
  const auto inside = list.substr(1, list.size() - 2);
  return inside.find_first_not_of(" \t\r\n") == std::string_view::npos ? std::string_view{} : inside;
}

std::size_t offset_in(std::string_view whole, std::string_view part) {
  return static_cast<std::size_t>(part.data() - whole.data());
}

}  // namespace

PromptLogprobs::Lists PromptLogprobs::read(std::string_view object) {
  Lists lists;
  const auto meta = find_member(object, "meta_info");
  for (std::size_t i = 0; meta && i < kNames.size(); ++i) {
    if (const auto list = find_member(*meta, kNames.at(i))) lists.at(i) = inside_of(*list);
  }
  return lists;
}

PromptLogprobs::PromptLogprobs(std::string_view reply, const RequestShape& shape) {
  if (!shape.items) {
    items_.push_back(read(reply));
    return;
  }
  json_text::Items items(reply);
  while (const auto item = items.next()) items_.push_back(read(*item));
}

std::string PromptLogprobs::merged(std::string_view object, std::size_t item) const {
  if (item >= items_.size()) return std::string(object);
  auto meta = find_member(object, "meta_info");
  if (!meta || meta->empty() || meta->front() != '{') return std::string(object);
  std::string out(object);
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const auto& prompt = items_[item].at(i);
    if (prompt.empty()) continue;
    meta = find_member(out, "meta_info");
    const auto own = find_member(*meta, kNames.at(i));
    if (own && !own->empty() && own->front() == '[') {
      const auto at = offset_in(out, *own) + 1;
      const bool is_empty = inside_of(*own).empty();
      out.insert(at, is_empty ? prompt : prompt + ",");
    } else if (own) {  // null, or not what it should be: prefill's list is the whole of it
      out.replace(offset_in(out, *own), own->size(), "[" + prompt + "]");
    } else {
      const bool has_members = json_text::Cursor(meta->substr(1)).next_token() != '}';
      out.insert(offset_in(out, *meta) + 1,
                 "\"" + std::string(kNames.at(i)) + "\":[" + prompt + (has_members ? "]," : "]"));
    }
  }
  return out;
}

std::string PromptLogprobs::merged_reply(std::string_view reply, const RequestShape& shape) const {
  if (!shape.items) return merged(reply, 0);
  std::string out = "[";
  json_text::Items items(reply);
  std::size_t count = 0;
  while (const auto item = items.next()) {
    if (count > 0) out += ',';
    out += merged(*item, count++);
  }
  return count == 0 ? std::string(reply) : out += ']';
}

std::string PromptLogprobs::merged_event(std::string_view data, const RequestShape& shape) const {
  std::size_t item = 0;
  if (shape.items) {
    const auto index = find_member(data, "index");
    const auto number = index ? json_text::plain_integer(*index, kMaxItems) : 0;
    if (number < 0) return std::string(data);
    item = static_cast<std::size_t>(number);
  }
  return merged(data, item);
}

}  // namespace handoff::sglang
