#include "sidecar/engine_error.hpp"

#include <algorithm>

#include "shared/json/object_scan.hpp"
#include "sidecar/ascii.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::size_t kMostBody = 64 * 1024;  // an error is short; anything else is not worth a scan
constexpr std::size_t kLongestWord = 64;

std::string_view word_of(const json::ObjectScan& scan, std::string_view name) {
  const auto* member = scan.find_last(name);
  if (member == nullptr) return {};
  auto text = scan.value(*member);
  if (member->kind == json::ValueKind::string) text = text.substr(1, text.size() - 2);
  if (text.empty() || text.size() > kLongestWord || member->kind == json::ValueKind::null) return {};
  const bool is_word = std::all_of(text.begin(), text.end(), [](char c) {
    return is_ascii_alpha(c) || is_ascii_digit(c) || c == '_' || c == '-' || c == '.';
  });
  return is_word ? text : std::string_view{};
}

}  // namespace

std::string engine_error_word(std::string_view body) {
  if (body.size() > kMostBody) return {};
  json::ObjectScan top;
  if (top.scan(body) != json::ScanStatus::object) return {};
  json::ObjectScan inner;
  const auto* error = top.find_last("error");
  const bool is_nested = error != nullptr && inner.scan(top.value(*error)) == json::ScanStatus::object;
  const auto& scan = is_nested ? inner : top;
  const auto type = word_of(scan, "type");
  return std::string(type.empty() ? word_of(scan, "code") : type);
}

}  // namespace handoff::sidecar
