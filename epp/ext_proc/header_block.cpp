#include "epp/ext_proc/header_block.hpp"

#include <span>

namespace handoff::epp {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

void HeaderBlock::reserve(std::size_t fields, std::size_t bytes) {
  fields_.reserve(fields);
  text_.reserve(bytes);
}

void HeaderBlock::add(std::string_view name, std::string_view value) {
  fields_.push_back({static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(name.size()),
                     static_cast<std::uint32_t>(value.size())});
  const std::size_t begin = text_.size();
  text_ += name;
  // Without a branch, as nearly all names are in lower case already.
  for (char& c : std::span(text_).subspan(begin)) {
    const auto letter = static_cast<unsigned char>(c - 'A');
    c = static_cast<char>(c | ((letter < 26) << 5));
  }
  text_ += value;
}

void HeaderBlock::clear() {
  fields_.clear();
  text_.clear();
}

std::string_view HeaderBlock::name(std::size_t i) const {
  const Field& field = fields_[i];
  return std::string_view(text_).substr(field.begin, field.name_size);
}

std::string_view HeaderBlock::value(std::size_t i) const {
  const Field& field = fields_[i];
  return std::string_view(text_).substr(field.begin + field.name_size, field.value_size);
}

std::optional<std::string_view> HeaderBlock::first(std::string_view wanted) const {
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (name(i) == wanted) return value(i);
  }
  return std::nullopt;
}

std::optional<std::string_view> HeaderBlock::last_filled(std::string_view wanted) const {
  for (std::size_t i = fields_.size(); i-- > 0;) {
    if (name(i) != wanted) continue;
    if (const auto text = trimmed(value(i)); !text.empty()) return text;
  }
  return std::nullopt;
}

}  // namespace handoff::epp
