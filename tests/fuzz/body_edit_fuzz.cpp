// Edits of arbitrary JSON objects: the document must still parse, and differ from the original only in the
// members that were edited; all other bytes must be the original's.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/backend_sdk.hpp"
#include "shared/json/encoding.hpp"
#include "shared/json/object_scan.hpp"

namespace {

using namespace handoff;

void require(bool holds) {
  if (!holds) std::abort();
}

constexpr std::array<std::string_view, 4> kNames{"a", "stream", "max_tokens", ""};
constexpr std::array<std::string_view, 3> kValues{"1", "{\"x\":[null]}", "\"},{\""};

std::string joined(const std::vector<handoff_piece>& pieces, std::string_view original) {
  std::string out;
  std::size_t last = 0;  // the original's bytes keep their order, and none comes twice
  for (const auto& piece : pieces) {
    if (piece.data != nullptr) {
      out.append(piece.data, piece.size);
      continue;
    }
    require(piece.offset >= last && piece.offset <= original.size() &&
            piece.size <= original.size() - piece.offset);
    last = piece.offset + piece.size;
    out.append(original.substr(piece.offset, piece.size));
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  static json::ObjectScan scan;
  if (scan.scan(text) != json::ScanStatus::object) return 0;
  if (json::detect_encoding(text) != json::EncodingProblem::none || text.find('\0') != text.npos) return 0;
  auto tree = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!tree.is_object()) return 0;

  std::vector<handoff_member> members;
  for (const auto& member : scan.members()) {
    members.push_back({{member.name.data(), member.name.size()},
                       member.key_begin,
                       member.value_begin,
                       member.value_end,
                       static_cast<std::uint32_t>(member.kind),
                       0});
  }
  handoff_object object{};
  object.struct_size = sizeof(object);
  object.text = {text.data(), text.size()};
  object.text_kind = HANDOFF_TEXT_OBJECT;
  object.members = members.data();
  object.member_count = members.size();
  object.open_brace = scan.open_brace();
  object.close_brace = scan.close_brace();

  sdk::BodyEdit edit{sdk::Object(object)};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto name = kNames[data[i] % kNames.size()];
    const auto value = kValues[data[i] / 8 % kValues.size()];
    switch (data[i] / 64) {
      case 0:
        break;
      case 1:
        edit.remove(name);
        tree.erase(std::string(name));
        break;
      default:
        edit.set(name, value);
        tree[std::string(name)] = nlohmann::json::parse(value);
        break;
    }
  }
  const auto after = joined(edit.pieces(), text);
  require(nlohmann::json::parse(after, nullptr, false) == tree);
  return 0;
}
