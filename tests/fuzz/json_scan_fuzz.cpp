// Scans arbitrary bytes. The scan must stay inside the text, keep its offsets in order, and agree with a
// strict parser on every text which that parser takes for an object.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "shared/json/encoding.hpp"
#include "shared/json/object_scan.hpp"
#include "shared/json/string_text.hpp"

namespace {

using namespace handoff::json;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_offsets(const ObjectScan& scan, std::string_view text) {
  std::size_t previous_end = scan.open_brace();
  require(text[scan.open_brace()] == '{');
  for (const Member& member : scan.members()) {
    require(previous_end < member.key_begin && text[member.key_begin] == '"');
    require(member.key_begin < member.key_end && text[member.key_end - 1] == '"');
    require(member.key_end < member.value_begin && member.value_begin < member.value_end);
    std::string name;
    const auto key = text.substr(member.key_begin, member.key_end - member.key_begin);
    require(decode_string(key, name) && name == member.name);
    previous_end = member.value_end;
  }
  require(previous_end <= scan.close_brace() && text[scan.close_brace()] == '}');
}

void check_against_strict_parser(const ObjectScan& scan, ScanStatus status, std::string_view text) {
  const auto tree = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!tree.is_object()) return;
  require(status == ScanStatus::object);
  for (const auto& [name, value] : tree.items()) {
    const Member* member = scan.find_last(name);
    require(member != nullptr);
    require(nlohmann::json::parse(scan.value(*member), nullptr, false) == value);
  }
  for (const Member& member : scan.members()) require(tree.contains(std::string(member.name)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ObjectScan scan;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const ScanStatus status = scan.scan(text);
  if (status == ScanStatus::object) check_offsets(scan, text);
  // nlohmann/json takes a NUL between tokens for the end of the text, whatever follows; no engine does.
  const bool comparable = detect_encoding(text) == EncodingProblem::none && text.find('\0') == text.npos;
  if (comparable && status != ScanStatus::too_many_members) {
    check_against_strict_parser(scan, status, text);
  }
  std::string quoted;
  append_quoted(quoted, text);
  require(nlohmann::json::accept(quoted));
  return 0;
}
